"""The way of prompts from one group to another, page by page, as the prefill service does it.

A push is ordered after the step that fills its pages and copied a tick later, so that steps and switches of
both groups come in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from splash_core.errors import Conflict
from splash_core.ids import SeqId
from splash_core.scheduling.events import Event, PrefilledEvent
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.leases import Completion, Grant, handoff_checksum
from splash_core.scheduling.written import Written
from splash_core.switch.handoff import HandoffWrite, LandingPage, plan_handoff

WRITER = "prefill"


@dataclass
class Handover:
    """One request between the groups."""

    grant: Grant
    seq: SeqId
    num_prompt: int
    attempt: int = 1
    run: int = 0
    ordered: int = 0
    written: list[LandingPage] = field(default_factory=list)
    pushes: dict[int, tuple[HandoffWrite, ...]] = field(default_factory=dict)
    prefilled: PrefilledEvent | None = None
    gone: bool = False

    @property
    def keys(self) -> dict[str, object]:
        return {"attempt": self.attempt, "incarnation": self.grant.incarnation, "writer": WRITER}

    @property
    def whole(self) -> bool:
        return len(self.written) == len(self.grant.pages)


class Handovers:
    """All of them."""

    def __init__(
        self, prefill: GroupScheduler, decode: GroupScheduler, copy: Callable[[HandoffWrite], None]
    ) -> None:
        self._prefill, self._decode, self._copy = prefill, decode, copy
        self.open: dict[SeqId, Handover] = {}
        """By the prefill group's sequence."""
        self.pages_copied = 0
        self.early = 0
        """Pages ordered before their prompt was computed."""
        self.renewed = 0

    def add(self, grant: Grant, seq: SeqId, num_prompt: int) -> None:
        handover = self.open[seq] = Handover(grant, seq, num_prompt)
        self._decode.claim(grant.lease, **handover.keys)  # type: ignore[arg-type]

    def leave(self, seq: SeqId) -> None:
        """The client has gone; both groups have been told."""
        if seq in self.open:
            self.open[seq].gone = True

    def order(self) -> None:
        """Order pushes of what is whole now."""
        for handover in self.open.values():
            outgoing = (
                None if handover.gone else self._prefill.pushes.outgoing(handover.seq, first=handover.ordered)
            )
            if outgoing is None:
                continue
            if outgoing.run != handover.run:
                if handover.pushes:
                    continue  # not before the pushes of the computation before are over
                handover.run = outgoing.run
                if handover.ordered:
                    self._renew(handover)
                    continue
            if outgoing.pages > handover.ordered:
                first, handover.ordered = handover.ordered, outgoing.pages
                push, pages = self._prefill.pushes.begin(
                    handover.seq, first=first, end=outgoing.pages, lease=handover.grant.lease
                )
                self.early += (outgoing.pages - first) * (handover.prefilled is None)
                handover.pushes[push] = plan_handoff(pages.copies, handover.grant.pages, first_index=first)

    def copy(self) -> list[Event]:
        """Carry out what was ordered, and conclude what is whole or has gone; the decode group's events."""
        events: list[Event] = []
        for seq, handover in tuple(self.open.items()):
            for push, writes in tuple(handover.pushes.items()):
                for write in writes:
                    self._copy(write)
                    self.pages_copied += 1
                    handover.written.append(LandingPage(write.index, write.dst, write.dst_slot))
                del handover.pushes[push]
                self._prefill.pushes.end(push)
            if handover.gone:
                del self.open[seq]
                self._decode.abandon(handover.grant.lease, **handover.keys)  # type: ignore[arg-type]
            elif handover.prefilled is not None and handover.whole:
                del self.open[seq]
                events += self._complete(handover, handover.prefilled)
        return events

    def _renew(self, handover: Handover) -> None:
        handover.attempt += 1
        handover.ordered = 0
        handover.written.clear()
        self.renewed += 1
        self._decode.claim(handover.grant.lease, **handover.keys)  # type: ignore[arg-type]

    def _complete(self, handover: Handover, prefilled: PrefilledEvent) -> tuple[Event, ...]:
        assert prefilled.first_token is not None
        arena = self._decode._parts.residency.table.arena
        done = Completion(
            lease=handover.grant.lease,
            num_tokens=handover.num_prompt,
            checksum=handoff_checksum(handover.written),
            written=Written.whole(len(handover.written), arena),
            first_token=prefilled.first_token,
            first_position=handover.num_prompt,
            **handover.keys,  # type: ignore[arg-type]
        )
        try:
            return self._decode.landed(done, first_logprobs=prefilled.first_logprobs)
        except Conflict as error:
            raise AssertionError(f"{handover} was refused") from error
        finally:
            self._prefill.release(handover.seq)
