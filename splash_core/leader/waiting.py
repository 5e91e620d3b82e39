"""The bounded queue in front of a decode group's pages: first in first out, but for priorities and probes.

Invariant: a request waits in exactly one place, in order of precedence, until it is granted, refused or
leaves; beyond the bound, which counts users' requests alone, a new one is refused at once with a time to
come back.
"""

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from splash_core.errors import Overloaded, SplashError
from splash_core.ids import RequestId
from splash_core.policy.snapshot import WaitingSequence
from splash_core.scheduling.leases import Grant
from splash_core.spec.request import Purpose, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that wants pages."""

    request_id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    since: float = 0.0
    """When it came, in seconds; only differences are used."""


@dataclass(slots=True, eq=False)
class _Waiter:
    arrival: Arrival
    number: int
    grant: "asyncio.Future[Grant]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def precedence(self) -> tuple[Purpose, float, int]:
        """Smaller goes first, as in the scheduler."""
        return *self.arrival.sampling.precedence(self.arrival.since), self.number


class WaitingRoom:
    """Requests of one group that wait for pages.

    Args:
        reserve: tries to lease pages; None means not now; may raise an error of the request.
        give_back: called with a grant that nobody waits for any more.
        max_requests: most waiting requests of users.
        max_tokens: most prompt tokens of those.
    """

    def __init__(
        self,
        reserve: Callable[[Arrival], Grant | None],
        give_back: Callable[[Grant], None],
        *,
        max_requests: int,
        max_tokens: int,
    ) -> None:
        self._reserve = reserve
        self._give_back = give_back
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._waiters: list[_Waiter] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiters)

    def queued(self) -> tuple[WaitingSequence, ...]:
        """What a policy may see of the queue."""
        return tuple(
            WaitingSequence(
                prompt_tokens=len(waiter.arrival.prompt),
                projected_output=waiter.arrival.sampling.max_tokens,
            )
            for waiter in self._waiters
        )

    async def admit(self, arrival: Arrival) -> Grant:
        """Wait for pages.

        Raises:
            Overloaded: the queue is full; carries the time to come back.
            ContextTooLong: the request can never fit.
        """
        users = [len(one.arrival.prompt) for one in self._waiters if one.precedence[0] is Purpose.USER]
        check_room(
            waiting=len(users), tokens=sum(users), new_tokens=len(arrival.prompt),
            max_requests=self._max_requests, max_tokens=self._max_tokens,
        )  # fmt: skip
        waiter = _Waiter(arrival, next(self._numbers))
        insort(self._waiters, waiter, key=lambda one: one.precedence)
        self.pump()
        try:
            return await waiter.grant
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self.pump()
            elif waiter.grant.done() and not waiter.grant.cancelled() and waiter.grant.exception() is None:
                # Granted in the same moment: nobody will use it.
                self._give_back(waiter.grant.result())
            raise

    def pump(self) -> None:
        """Serve the head of the queue for as long as there is room."""
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.grant.done():
                # Cancelled, but its call has not run since: a grant would have no taker.
                self._waiters.pop(0)
                continue
            try:
                grant = self._reserve(waiter.arrival)
            except SplashError as error:
                self._waiters.pop(0)
                waiter.grant.set_exception(error)
                continue
            if grant is None:
                return
            self._waiters.pop(0)
            waiter.grant.set_result(grant)

    def fail(self, error: SplashError) -> None:
        """Refuse everybody that waits."""
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.grant.done():
                waiter.grant.set_exception(error)


def check_room(*, waiting: int, tokens: int, new_tokens: int, max_requests: int, max_tokens: int) -> None:
    """Return if one more request may wait; an empty queue takes any request.

    Raises:
        Overloaded: with the bound that is reached.
    """
    if waiting >= max_requests:
        raise Overloaded(f"{waiting} requests wait, the limit is {max_requests}", retry_after_s=1.0)
    if waiting and tokens + new_tokens > max_tokens:
        raise Overloaded(
            f"{tokens} prompt tokens wait and {new_tokens} more exceed the limit of {max_tokens}",
            retry_after_s=1.0,
        )
