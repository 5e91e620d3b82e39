"""The contract of the project: a switch, a relocation or a handoff as an explicit list of moves.

A manifest is pure data, deterministic for its inputs, and proven before it is executed: every wanted
copy is covered exactly once, from a holder, and nothing is read after its slot was given away.

Order of execution on every rank:

1. `boundary_chunks`: whole pages (all layers at once), before anything else. They clear the borrowed
   slots that the destination's replicated weights are about to fill.
2. for each layer i, before layer i computes: layer i's shards of the matrices `gathered` (if they are not
   in place already), then `layer_chunks` restricted to layer i.

Within one chunk every source is read into staging before any destination is written, so a chunk may
write slots that it also reads (a slot is handed over layer by layer). A chunk never reads a slot that an
earlier chunk of its phase wrote; layer chunks may read pages where the boundary put them.

Ranks stand still while a manifest is sent and read, so it is made of columns: a chunk has one flow for each
pair of ranks, and whoever executes it looks at flows, never at pages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.columns import Column, column, page_column
from splash_core.layout.layout import Layout, Matrix


class SwitchMode(StrEnum):
    """How a manifest is executed (docs/model.md §5)."""

    BLOCKING = "blocking"
    OVERLAPPED = "overlapped"
    PRECOPIED = "precopied"
    """Most of it is copied ahead by ordinary steps (`switch.precopy`); the rest moves as if overlapped."""


class Primitive(StrEnum):
    """What supplies one kind of state (docs/model.md §2)."""

    KEEP = "keep"
    DISCARD = "discard"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"


class PageMove(NamedTuple):
    """Copy one page (or one layer of it) from a holder to a wanted place. src == dst rank: a local copy."""

    page: PageId
    src: RankId
    src_slot: SlotId
    dst: RankId
    dst_slot: SlotId


@dataclass(frozen=True, slots=True)
class Flow:
    """The pages of a chunk that go from one rank to another, or to other slots of one rank."""

    src: RankId
    dst: RankId
    pages: Column
    src_slots: Column
    """Where `src` has each of them."""
    dst_slots: Column
    """Where `dst` puts each of them."""

    def __len__(self) -> int:
        """Pages."""
        return len(self.pages)

    def __iter__(self) -> Iterator[PageMove]:
        """One by one, for whoever looks at few."""
        for page, src_slot, dst_slot in zip(self.pages, self.src_slots, self.dst_slots, strict=True):
            yield PageMove(PageId(page), self.src, SlotId(src_slot), self.dst, SlotId(dst_slot))

    def cut(self, first: int, end: int) -> "Flow":
        """Only pages `first … end-1`."""
        part = slice(first, end)
        return Flow(self.src, self.dst, self.pages[part], self.src_slots[part], self.dst_slots[part])

    @property
    def crosses(self) -> bool:
        """True when another rank receives."""
        return self.src != self.dst


@dataclass(frozen=True, slots=True)
class Chunk:
    """Moves that run together."""

    flows: tuple[Flow, ...] = ()
    """Ascending by (src, dst): one for each pair of ranks that has any pages."""

    @classmethod
    def of(cls, moves: Iterable[PageMove]) -> "Chunk":
        """The moves; those between the same ranks stay in their order."""
        flows: dict[tuple[RankId, RankId], Flow] = {}
        for page, src, src_slot, dst, dst_slot in moves:
            flow = flows.get((src, dst))
            if flow is None:
                flow = flows[src, dst] = Flow(src, dst, page_column(), column(), column())
            flow.pages.append(page)
            flow.src_slots.append(src_slot)
            flow.dst_slots.append(dst_slot)
        return cls(tuple(flow for _, flow in sorted(flows.items())))

    def __len__(self) -> int:
        """Pages."""
        return sum(map(len, self.flows))

    def __iter__(self) -> Iterator[PageMove]:
        """One by one, for whoever looks at few."""
        for flow in self.flows:
            yield from flow


def flows_of(chunks: Iterable[Chunk]) -> Iterator[Flow]:
    """All flows of chunks, in order."""
    return (flow for chunk in chunks for flow in chunk.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchManifest:
    """One switch of a group (or, with layout_from == layout_to, a relocation inside it)."""

    layout_from: Layout
    layout_to: Layout
    epoch: Epoch
    """The group's layout epoch once the switch is complete."""
    weights: Primitive
    """KEEP, DISCARD or ALL_GATHER: the head-indexed projections, all layers alike."""
    gathered: tuple[Matrix, ...] = ()
    """Which of them become replicated, in the order of `Matrix`; empty unless `weights` is ALL_GATHER."""
    kv: Primitive
    ready_layers: tuple[int, ...] = ()
    """Layers of which `gathered` was copied ahead and is in place."""
    boundary_chunks: tuple[Chunk, ...] = ()
    layer_chunks: tuple[Chunk, ...] = ()
    released: tuple[Column, ...] = ()
    """`[T]`: slots of each rank that hold nothing after the switch though they held a page before or
    meanwhile, ascending."""
    weight_bytes_per_layer: int = 0
    """Received per rank per layer."""
    kv_bytes_per_layer: tuple[int, ...] = ()
    """Received per rank, per layer (boundary moves spread over layers)."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks in execution order."""
        return (*self.boundary_chunks, *self.layer_chunks)

    @property
    def flows(self) -> Sequence[Flow]:
        """All flows in execution order."""
        return tuple(flows_of(self.chunks))

    @property
    def moves(self) -> tuple[PageMove, ...]:
        """All page moves in execution order, one by one."""
        return tuple(move for chunk in self.chunks for move in chunk)

    @property
    def takes_the_link(self) -> bool:
        """True for a switch in which ranks send each other something; a relocation is small, and is none."""
        if self.layout_from is self.layout_to:
            return False
        return self.weights is Primitive.ALL_GATHER or any(flow.crosses for flow in self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a switch cannot be done now, with the numbers that an operator needs."""

    layout_from: Layout
    layout_to: Layout
    reason: str
    rank: RankId | None = None
    needed_slots: int | None = None
    free_slots: int | None = None
