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
"""

from dataclasses import dataclass
from enum import StrEnum

from splash_core.ids import Epoch, PageId, RankId, SlotId
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


@dataclass(frozen=True, slots=True, order=True)
class PageMove:
    """Copy one page (or one layer of it) from a holder to a wanted place. src == dst rank: a local copy."""

    page: PageId
    src: RankId
    src_slot: SlotId
    dst: RankId
    dst_slot: SlotId


@dataclass(frozen=True, slots=True, order=True)
class SlotRef:
    """A slot on a rank."""

    rank: RankId
    slot: SlotId


Chunk = tuple[PageMove, ...]


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
    released: tuple[SlotRef, ...] = ()
    """Slots that hold nothing after the switch though they held a page before or meanwhile; sorted."""
    weight_bytes_per_layer: int = 0
    """Received per rank per layer."""
    kv_bytes_per_layer: tuple[int, ...] = ()
    """Received per rank, per layer (boundary moves spread over layers)."""

    @property
    def moves(self) -> tuple[PageMove, ...]:
        """All page moves in execution order."""
        return tuple(move for chunk in (*self.boundary_chunks, *self.layer_chunks) for move in chunk)

    @property
    def takes_the_link(self) -> bool:
        """True for a switch in which ranks send each other something; a relocation is small, and is none."""
        if self.layout_from is self.layout_to:
            return False
        if self.weights is Primitive.ALL_GATHER:
            return True
        chunks = (*self.boundary_chunks, *self.layer_chunks)
        return any(move.src != move.dst for chunk in chunks for move in chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a switch cannot be done now, with the numbers that an operator needs."""

    layout_from: Layout
    layout_to: Layout
    reason: str
    rank: RankId | None = None
    needed_slots: int | None = None
    free_slots: int | None = None
