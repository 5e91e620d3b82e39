"""Requests that leave and arrive while a switch copies ahead, and what that undoes of it.

Pure: the same calls give the same plans on every rank. Invariant: there are never more requests than at the
beginning, and a request that arrives is as long as those that were there; the last one never leaves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Self

from services.bench.decode_group import DecodeGroup, SwitchPlans
from splash_core.ids import PageId
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.switch.manifest import Chunk, PageMove


@dataclass(slots=True, kw_only=True)
class Churn:
    """At every so many ordinary steps one thing happens, in turn: cancel, admit, finish, admit.

    Who leaves is the oldest: its pages have been copied first.
    """

    group: DecodeGroup
    every: int
    """Ordinary steps between two events."""
    most: int
    """Requests at the beginning."""
    context: int
    output: int
    cancelled: int = 0
    finished: int = 0
    admitted: int = 0
    turned_away: int = 0
    _events: "cycle[Callable[[], None]]" = field(init=False)

    def __post_init__(self) -> None:
        self._events = cycle((self._cancel, self._admit, self._finish, self._admit))

    def __call__(self, step: int) -> None:
        """What happens before ordinary step `step` of the switch, counted from 0."""
        if step and step % self.every == 0:
            next(self._events)()

    def _cancel(self) -> None:
        if len(self.group.seqs) > 1:
            self.group.cancel(self.group.seqs[0])
            self.cancelled += 1

    def _finish(self) -> None:
        if len(self.group.seqs) > 1:
            self.group.finish(self.group.seqs[0])
            self.finished += 1

    def _admit(self) -> None:
        if len(self.group.seqs) == self.most:
            return
        if self.group.admit(self.context, output=self.output):
            self.admitted += 1
        else:
            self.turned_away += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadBooks:
    """What copying ahead came to, bytes received by all ranks together."""

    copied_bytes: int
    invalidated_bytes: int
    """Copied, but not part of the state after the switch."""
    recopied_bytes: int
    """Copied a second time or more, ahead or in the switching step."""

    @classmethod
    def of(cls, plans: SwitchPlans, arena: ArenaMap, live: Mapping[PageId, Sequence[PageCopy]]) -> Self:
        """Keep the books of one switch.

        Args:
            plans: all of its steps.
            arena: the slot map of each rank.
            live: copies of every page that is left right after the switching step.
        """
        ahead = [move for plan in plans.ahead if plan.precopy for move in _crossing(plan.precopy.chunks)]
        manifest = plans.switching.manifest
        # The last copy of a page to a rank is the one that may be there still.
        latest = {(move.page, move.dst): move.dst_slot for move in ahead}
        places = {(page, copy.rank): copy.slot for page, copies in live.items() for copy in copies}
        kept = sum(places.get(key) == slot for key, slot in latest.items())
        brought = [*ahead, *(_crossing(manifest.layer_chunks) if manifest else ())]
        again = len(brought) - len({(move.page, move.dst) for move in brought})
        layers, layer_bytes = _weights(plans, arena)
        ready = min(layers, len(manifest.ready_layers) if manifest else 0)
        return cls(
            copied_bytes=len(ahead) * arena.slot_bytes + layers * layer_bytes,
            invalidated_bytes=(len(ahead) - kept) * arena.slot_bytes + (layers - ready) * layer_bytes,
            recopied_bytes=again * arena.slot_bytes,
        )


def _crossing(chunks: Sequence[Chunk]) -> list[PageMove]:
    return [move for chunk in chunks for move in chunk if move.src != move.dst]


def _weights(plans: SwitchPlans, arena: ArenaMap) -> tuple[int, int]:
    """Layers whose weights were gathered ahead, and what all ranks received for one."""
    batches = [plan.precopy for plan in plans.ahead if plan.precopy and plan.precopy.weight_layers]
    layers = sum(len(batch.weight_layers) for batch in batches)
    gathered = batches[0].gathered if batches else ()
    return layers, arena.num_ranks * arena.gather_bytes_per_layer(gathered)
