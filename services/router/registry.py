"""The groups of one deployment, kept in memory and refreshed by asking their leaders.

Invariants: a group is given requests only while its last answer says that it is ready; an answer that is late
keeps the last one (busy is not dead), a refused connection does not. No two groups have the same label.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from services.router.charge import Charge
from services.router.naming import named, renamed_by
from services.router.pairing import compatible, why_not_ready
from services.router.records import GroupRecord
from services.router.weights import RoutedModel
from services.router.worker import Worker
from splash_core.dispatch.admission import Demand, DeploymentLimits, GroupLimits, GroupLoad, pair_limits
from splash_core.dispatch.placement import Pair
from splash_core.errors import DeadlineExceeded, NotFound, SplashError, Unavailable
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import control_pb2

_LOG = logging.getLogger("splash.router")

PHASES = ("prefill", "decode")


class Registry:
    """Knows every group's record and what this router has sent there."""

    def __init__(
        self,
        workers: Mapping[str, Sequence[Worker]],
        *,
        clock: Callable[[], float],
        poll_interval_s: float,
        poll_timeout_s: float,
        served: RoutedModel | None = None,
    ) -> None:
        self._clock = clock
        self._interval_s = poll_interval_s
        self._timeout_s = poll_timeout_s
        self._served = served
        self.workers = {worker.address: worker for phase in PHASES for worker in workers[phase]}
        self._records = {
            worker.address: GroupRecord(address=worker.address, phase=phase, answered_at_s=clock())
            for phase in PHASES
            for worker in workers[phase]
        }
        self._charges: set[Charge] = set()
        self._changed = asyncio.Condition()
        self._hurry = {address: asyncio.Event() for address in self._records}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, vitals: VitalTasks) -> None:
        """Begin to ask the groups for their state; `vitals` are of the router."""
        self._tasks = [vitals.keep(f"poll of {address}", self._poll(address)) for address in self._records]

    async def stop(self) -> None:
        """Stop asking and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.workers.values():
            await worker.close()

    def records(self, phase: str | None = None) -> list[GroupRecord]:
        """All groups, or those of a phase."""
        return [record for record in self._records.values() if phase in (None, record.phase)]

    def record(self, address: str) -> GroupRecord:
        """What is known of the group behind an address."""
        return self._records[address]

    def find(self, phase: str, group: str | None) -> tuple[GroupRecord, Worker]:
        """The group that an operator named: by phase alone when the phase has one group only."""
        if phase not in PHASES:
            raise NotFound(f"phase {phase!r} does not exist; name prefill or decode", param="phase")
        records = self.records(phase)
        matching = [record for record in records if group is None or group in (record.label, record.address)]
        if len(matching) != 1:
            names = ", ".join(record.label for record in records) or "none"
            raise NotFound(f"name one of the {phase} groups: {names}; got {group!r}", param="group")
        return matching[0], self.workers[matching[0].address]

    def limits(self) -> DeploymentLimits | None:
        """What the pairs of groups can hold; None before both phases are known."""
        prefills, decodes = (
            [
                _limits(record.description)
                for record in self.records(phase)
                if record.description is not None and record.refused is None
            ]
            for phase in PHASES
        )
        if not prefills or not decodes:
            return None
        return DeploymentLimits(
            pairs=tuple(pair_limits(prefill, decode) for prefill in prefills for decode in decodes),
            max_scored=max(min(limits.max_model_len, limits.max_request_tokens) for limits in prefills),
        )

    def causes(self, *, scoring: bool = False) -> list[str]:
        """Why no request (or none that only scores its prompt) can be served now; empty when one can."""
        prefills = self.records("prefill")
        if not scoring:
            return why_not_ready(prefills, self.records("decode"))
        troubles = [told for record in prefills if (told := record.told)]
        return troubles if len(troubles) == len(prefills) else []

    def pairs(self, *, blamed: Collection[frozenset[str]] = ()) -> list[Pair]:
        """Ready groups that fit together, with their loads.

        Args:
            blamed: groups of which a request must not use all of an entry together.
        """
        return [
            Pair(prefill=self._load(prefill), decode=self._load(decode))
            for prefill in self._usable("prefill")
            for decode in self._usable("decode")
            if compatible(prefill, decode)
            and not any(groups <= {prefill.address, decode.address} for groups in blamed)
        ]

    def prefills(self, *, blamed: Collection[frozenset[str]] = ()) -> list[GroupLoad]:
        """Ready prefill groups alone, with their loads; see `pairs`."""
        return [
            self._load(record)
            for record in self._usable("prefill")
            if not any(groups <= {record.address} for groups in blamed)
        ]

    def charge(self, *, prefill: str, decode: str | None, demand: Demand) -> Charge:
        """Count a sequence against its groups from now on."""
        charge = Charge(prefill=prefill, decode=decode, demand=demand)
        self._charges.add(charge)
        return charge

    def leased(self, charge: Charge) -> None:
        """The decode group has admitted the sequence: its next state includes it."""
        charge.leased_at_s = self._clock()

    def drawn(self, charge: Charge) -> None:
        """Its first token is here: its prompt no longer waits for anything."""
        charge.drawn_at_s = self._clock()

    def discharge(self, charge: Charge) -> None:
        """The sequence has ended; look at its group soon if somebody may wait for the room."""
        self._charges.discard(charge)
        if charge.decode is not None:
            self._hurry[charge.decode].set()

    def suspect(self, address: str) -> None:
        """A request failed there: look at once whether the group still answers."""
        self._hurry[address].set()

    async def wait_for_change(self) -> None:
        """Return when any record has been refreshed."""
        async with self._changed:
            await self._changed.wait()

    async def refresh(self, address: str) -> None:
        """Ask one group for its state now."""
        record, worker = self._records[address], self.workers[address]
        asked_at_s = self._clock()
        try:
            state = await worker.state(timeout_s=self._timeout_s)
            description = record.description
            if description is None or description.incarnation != state.incarnation:
                description = await worker.describe(timeout_s=self._timeout_s)
            self._take(address, description, state, asked_at_s)
        except DeadlineExceeded:
            return
        except SplashError as error:
            self._note_failure(address, error)
            return
        except Exception as error:  # of this group alone: it is asked again, and given nothing meanwhile
            _LOG.exception("an answer of %s cannot be understood", address)
            self._note_failure(address, _not_understood(error))
            return

    def _take(
        self,
        address: str,
        description: control_pb2.GroupDescription,
        state: control_pb2.GroupState,
        asked_at_s: float,
    ) -> None:
        """Take an answer, whole or not at all: what is odd about it is that group's trouble."""
        answered_at_s = self._clock()
        answer = GroupRecord(
            address=address,
            phase=self._records[address].phase,
            description=description,
            state=state,
            mismatch=self._served.mismatch(description.abi) if self._served else None,
            asked_at_s=asked_at_s,
            answered_at_s=answered_at_s,
        )
        record = named(answer, self.records(), now_s=answered_at_s)
        renamed = renamed_by(record, self.records())
        before = self._records[address]
        self._records |= {one.address: one for one in (record, *renamed)}
        if record.refused is not None and record.refused != before.refused:
            fields = {"group": record.label, "address": record.address, "cause": record.refused}
            _LOG.error("group refused", extra={"fields": fields})

    def _note_failure(self, address: str, error: SplashError) -> None:
        record = self._records[address]
        if record.error is None and record.state is not None:
            _LOG.warning("group lost", extra={"fields": {"group": record.label, "cause": str(error)}})
        self._records[address] = replace(record, error=str(error))

    async def _poll(self, address: str) -> None:
        while True:
            self._hurry[address].clear()
            await self.refresh(address)
            await self._notify()
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`, which may swallow a cancellation.
                async with asyncio.timeout(self._interval_s):
                    await self._hurry[address].wait()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _usable(self, phase: str) -> list[GroupRecord]:
        return [record for record in self.records(phase) if record.trouble is None]

    def _load(self, record: GroupRecord) -> GroupLoad:
        assert record.state is not None, "only groups that answered are loaded"
        assert record.description is not None, "only groups that answered are loaded"
        mine = [charge for charge in self._charges if record.address in (charge.prefill, charge.decode)]
        unseen = [
            charge
            for charge in mine
            if charge.decode == record.address
            and (charge.leased_at_s is None or charge.leased_at_s >= record.asked_at_s)
        ]
        return GroupLoad(
            address=record.address,
            group=record.label,
            limits=_limits(record.description),
            kv_tokens_total=record.state.kv_tokens_total,
            kv_tokens_projected=record.state.kv_tokens_projected
            + sum(charge.demand.kv_tokens for charge in unseen),
            sequences=record.state.running + record.state.waiting + len(unseen),
            prompt_tokens_pending=sum(
                charge.demand.prompt_tokens for charge in mine if charge.drawn_at_s is None
            ),
        )


def _limits(description: control_pb2.GroupDescription) -> GroupLimits:
    """Zero in a description means no bound of that kind."""
    longest = description.max_model_len or description.max_request_tokens
    return GroupLimits(max_model_len=longest, max_request_tokens=description.max_request_tokens or longest)


def _not_understood(error: Exception) -> Unavailable:
    cause = f"{type(error).__name__}: {error}"
    return Unavailable(f"its answer cannot be understood ({cause}); does it run the router's version?")


def no_worker(causes: Sequence[str]) -> Unavailable:
    """The error for a request that no group can serve now."""
    return Unavailable("no worker can serve now: " + "; ".join(causes))
