"""Where weights and KV pages live in a rank's one allocation (docs/model.md §3).

The arena is cut into slots of one KV page each. Every head-indexed projection has a fixed place in which
its own shard ends on a slot boundary and the other ranks' shards follow, so the sharded view is a prefix
of the replicated view. Slots that lie wholly inside "the others" are *borrowed*: they hold weights where the
layout replicates that matrix and KV pages where it shards it. Invariant: ordinary and borrowed slots are
disjoint, each borrowed slot belongs to one matrix, and no ordinary slot overlaps a matrix.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import cast

from splash_core.errors import ConfigError, Infeasible
from splash_core.ids import SlotId
from splash_core.layout.layout import Matrices, Matrix
from splash_core.spec.model import ModelSpec
from splash_core.units import format_bytes


def page_bytes(spec: ModelSpec, *, page_size: int, elem_bytes: int) -> int:
    """Bytes of one page over all layers, which is one slot."""
    return spec.num_mla_layers * page_size * spec.kv_row * elem_bytes


def matrix_elements(spec: ModelSpec, matrix: Matrix) -> int:
    """Elements of one head-indexed projection of one layer, all heads."""
    shapes = {Matrix.Q_B: spec.q_b_shape, Matrix.KV_B: spec.kv_b_shape, Matrix.O: spec.o_shape}
    return prod(shapes[matrix])


def can_shard(spec: ModelSpec, num_ranks: int) -> bool:
    """True when the heads split evenly over the ranks."""
    return spec.heads % num_ranks == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPlace:
    """The fixed place of one projection matrix, in bytes from the start of the arena."""

    layer: int
    matrix: Matrix
    offset: int
    own_bytes: int
    """This rank's shard, first; it ends on a slot boundary."""
    full_bytes: int
    """All shards, in rotated head order: rank j stores the heads of rank j, j+1, … mod T."""
    borrowed: tuple[SlotId, ...]
    """Slots wholly inside the other ranks' shards."""

    @property
    def end(self) -> int:
        """First byte after the whole matrix."""
        return self.offset + self.full_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaMap:
    """The slot map of a rank's arena; identical on every rank of a group."""

    num_ranks: int
    num_layers: int
    page_size: int
    """Tokens per page."""
    slot_bytes: int
    num_slots: int
    """Slots of the whole arena: slot ids index `arena.view(num_slots, L, page_size, r+p)`."""
    places: Mapping[tuple[int, Matrix], MatrixPlace]
    region_slots: int
    """The first slots, in which the weights lie; those behind them are ordinary."""
    lenders: Mapping[Matrix, tuple[SlotId, ...]]
    """Borrowed slots by the matrix that fills them when it is replicated, over all layers."""
    gap_bytes: int
    """Bytes of the weights region that hold no weight even when all projections are replicated."""
    arena_bytes: int
    """A whole number of slots."""

    @classmethod
    def build(
        cls, spec: ModelSpec, *, num_ranks: int, page_size: int, elem_bytes: int, arena_bytes: int
    ) -> "ArenaMap":
        """Lay the weights of `spec` and as many slots as fit into `arena_bytes`, rounded down to slots.

        Raises:
            Infeasible: the weights and one ordinary slot do not fit; names the bytes that would.
            ConfigError: an argument is not positive.
        """
        for name, value in (("num_ranks", num_ranks), ("page_size", page_size), ("elem_bytes", elem_bytes)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        slot = page_bytes(spec, page_size=page_size, elem_bytes=elem_bytes)
        places = place_matrices(
            {matrix: matrix_elements(spec, matrix) * elem_bytes for matrix in Matrix},
            layers=spec.num_mla_layers,
            shards=num_ranks if can_shard(spec, num_ranks) else 1,
            slot_bytes=slot,
        )
        weights_end = max((place.end for place in places.values()), default=0)
        region_slots = -(-weights_end // slot)
        num_slots = arena_bytes // slot
        if num_slots <= region_slots:
            least = (region_slots + 1) * slot
            raise Infeasible(
                f"an arena of {arena_bytes} bytes ({format_bytes(arena_bytes)}) cannot hold the projections "
                f"({region_slots * slot} bytes with gaps) and one page of {slot} bytes",
                nearest=f"{least} bytes ({format_bytes(least)})",
            )
        full = sum(place.full_bytes for place in places.values())
        return cls(
            num_ranks=num_ranks,
            num_layers=spec.num_mla_layers,
            page_size=page_size,
            slot_bytes=slot,
            num_slots=num_slots,
            places=MappingProxyType(places),
            region_slots=region_slots,
            lenders=MappingProxyType(lenders_of(places)),
            gap_bytes=region_slots * slot - full,
            arena_bytes=num_slots * slot,
        )

    @property
    def ordinary(self) -> Sequence[SlotId]:
        """Slots that every layout may use, ascending; nothing is kept for each: there may be any number."""
        return cast("Sequence[SlotId]", range(self.region_slots, self.num_slots))

    @property
    def num_ordinary(self) -> int:
        """How many they are, be it more than a sequence can be long."""
        return self.num_slots - self.region_slots

    @property
    def borrowed(self) -> tuple[SlotId, ...]:
        """All slots that hold weights in some layout, ascending."""
        return tuple(sorted(slot for slots in self.lenders.values() for slot in slots))

    def num_pages(self, lent: Matrices) -> int:
        """Pages that a rank can hold where the borrowed slots of the matrices `lent` may be used."""
        return self.num_ordinary + sum(len(self.lenders.get(matrix, ())) for matrix in lent)

    @property
    def layer_slice_bytes(self) -> int:
        """Bytes of one layer of one page: what a layer chunk moves per page."""
        return self.slot_bytes // self.num_layers

    def gather_bytes_per_layer(self, matrices: Collection[Matrix]) -> int:
        """(2): bytes a rank receives per layer when these projections are gathered: W·(1 - 1/T) of each."""
        first_layer = (self.places[0, matrix] for matrix in matrices if (0, matrix) in self.places)
        return sum(place.full_bytes - place.own_bytes for place in first_layer)


def lenders_of(places: Mapping[tuple[int, Matrix], MatrixPlace]) -> dict[Matrix, tuple[SlotId, ...]]:
    """The borrowed slots of each matrix, over all layers, ascending."""
    return {
        matrix: tuple(
            sorted(slot for place in places.values() if place.matrix is matrix for slot in place.borrowed)
        )
        for matrix in Matrix
    }


def place_matrices(
    matrix_bytes: Mapping[Matrix, int], *, layers: int, shards: int, slot_bytes: int
) -> dict[tuple[int, Matrix], MatrixPlace]:
    """Places of all projections, layer by layer; each at the lowest offset that ends its own shard on a slot.

    Args:
        matrix_bytes: bytes of one layer's matrices, all heads.
        layers: layers with projections.
        shards: T; 1 when the heads do not split, so that nothing is borrowed.
        slot_bytes: bytes of a slot.
    """
    places: dict[tuple[int, Matrix], MatrixPlace] = {}
    end = 0
    for layer in range(layers):
        for matrix in Matrix:
            full = matrix_bytes[matrix]
            own = full // shards
            offset = end + (-(end + own)) % slot_bytes
            first = (offset + own) // slot_bytes
            end = offset + full
            places[layer, matrix] = MatrixPlace(
                layer=layer,
                matrix=matrix,
                offset=offset,
                own_bytes=own,
                full_bytes=full,
                borrowed=tuple(SlotId(slot) for slot in range(first, end // slot_bytes)),
            )
    return places
