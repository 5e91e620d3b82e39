"""How groups get the active version of the policy: handed over, repeated to those that were away, told apart.

Invariant: at most one call is under way to a group, so versions reach it in their order.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.router.policy_keeper import PolicyKeeper
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import Conflict, InvalidRequest, SplashError
from splash_core.pb import control_pb2

_LOG = logging.getLogger("splash.router")
_CALL_TIMEOUT_S = 5.0
"""A group in a long step takes the version later, and is asked again."""


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """What a group is to decide by."""

    number: int
    digest: str
    trying: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a group said to an order."""

    incarnation: str
    order: PolicyOrder
    at_s: float
    pinned: str = ""
    refusal: str = ""


class PolicyDelivery:
    """Hands orders to groups until each has its own."""

    def __init__(
        self,
        keeper: PolicyKeeper,
        registry: Registry,
        *,
        clock: Callable[[], float],
        tries: Callable[[GroupRecord], bool],
    ) -> None:
        self._keeper = keeper
        self._registry = registry
        self._clock = clock
        self._tries = tries
        self._answers: dict[str, _Answer] = {}
        self._troubles: dict[str, str] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}

    def deliver(self) -> None:
        """Begin to hand over whatever groups do not have yet."""
        for record in self._registry.records():
            if record.address not in self._calls and self._lacks(record):
                call = asyncio.create_task(self._call(record.address))
                self._calls[record.address] = call

    async def settle(self) -> None:
        """Hand over, and wait until every group that can be reached has answered, or has had its time."""
        self.deliver()
        # Not those that begin meanwhile: a group that cannot be reached is called again and again.
        if calls := list(self._calls.values()):
            await asyncio.wait(calls)

    async def stop(self) -> None:
        """Give up calls under way."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def in_force(self, record: GroupRecord) -> PolicyOrder | None:
        """What a group decides by, as far as it has told; None before that."""
        answer = self._newest(record)
        if answer is not None:
            return answer.order
        if record.state is None:
            return None
        policy = record.state.policy
        return PolicyOrder(policy.version, policy.digest, policy.trying)

    def pinned(self, record: GroupRecord) -> str | None:
        """The layout that a group is held in, as far as it has told."""
        answer = self._newest(record)
        told = record.state.policy.pinned if answer is None and record.state is not None else ""
        return (told if answer is None else answer.pinned) or None

    def trouble(self, record: GroupRecord) -> str | None:
        """Why a group does not decide by the active version; None where it does, or nothing is active."""
        wanted = self._wanted(record)
        if wanted is None or self.in_force(record) == wanted:
            return None
        answer = self._answers.get(record.address)
        if answer is not None and answer.refusal and self._is_about(answer, record, wanted):
            return answer.refusal
        return record.error or self._troubles.get(record.address, "has not taken it yet")

    def _wanted(self, record: GroupRecord) -> PolicyOrder | None:
        active = self._keeper.active
        return None if active is None else PolicyOrder(active.number, active.digest, self._tries(record))

    def _lacks(self, record: GroupRecord) -> bool:
        wanted = self._wanted(record)
        if wanted is None or record.error is not None or record.state is None:
            return False
        if record.state.state not in ("ready", "draining") or self.in_force(record) == wanted:
            return False
        answer = self._answers.get(record.address)
        return answer is None or not answer.refusal or not self._is_about(answer, record, wanted)

    def _newest(self, record: GroupRecord) -> _Answer | None:
        """The answer to the last order, where it says more than the state that was asked for last."""
        answer, state = self._answers.get(record.address), record.state
        if answer is None or answer.refusal or state is None or answer.incarnation != state.incarnation:
            return None
        return answer if answer.at_s >= record.asked_at_s else None

    @staticmethod
    def _is_about(answer: _Answer, record: GroupRecord, wanted: PolicyOrder) -> bool:
        state = record.state
        return state is not None and (answer.incarnation, answer.order) == (state.incarnation, wanted)

    async def _call(self, address: str) -> None:
        """Hand over until the group has what is wanted, or does not take it."""
        try:
            while self._lacks(record := self._registry.record(address)) and await self._hand_over(record):
                pass
        except Exception as error:  # of this group alone: it is called again with the next change
            _LOG.exception("the policy cannot be handed to %s", address)
            self._troubles[address] = f"cannot be handed over: {type(error).__name__}: {error}"
        finally:
            del self._calls[address]

    async def _hand_over(self, record: GroupRecord) -> bool:
        """One order; False where it is better tried again later."""
        active, state = self._keeper.active, record.state
        assert active is not None, "only what is active is handed over"
        assert state is not None, "only to groups that have answered"
        order = PolicyOrder(active.number, active.digest, self._tries(record))
        request = control_pb2.SetPolicyRequest(
            version=order.number,
            digest=order.digest,
            document=active.document.to_toml(),
            trying=order.trying,
        )
        refusal = pinned = ""
        try:
            worker = self._registry.workers[record.address]
            result = await worker.set_policy(request, timeout_s=_CALL_TIMEOUT_S)
            pinned = result.policy.pinned
        except (InvalidRequest, Conflict) as error:
            refusal = str(error)
            fields = {"group": record.label, "version": order.number, "reason": refusal}
            _LOG.warning("group refuses the policy", extra={"fields": fields})
        except SplashError as error:
            self._troubles[record.address] = str(error)
            return False
        self._troubles.pop(record.address, None)
        self._answers[record.address] = _Answer(
            incarnation=state.incarnation,
            order=order,
            at_s=self._clock(),
            pinned=pinned,
            refusal=refusal,
        )
        self._registry.suspect(record.address)
        return True
