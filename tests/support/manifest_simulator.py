"""Executes manifests on symbols: what each (rank, layer, slot) holds, in the documented order.

The simulator knows nothing of how a manifest was planned. It proves, move by move, that every read finds
the page it is meant to find, that staging is respected, and that no chunk reads what an earlier one of its
phase wrote; `assert_outcome` then compares the arena with the page table that recorded the manifest.
"""

from collections import Counter
from types import MappingProxyType

from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.layout import RULES, Layout, Matrices, Matrix
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap, MatrixPlace, lenders_of
from splash_core.switch.manifest import Chunk, PageMove, SwitchManifest

LAYER_BYTES = 8
MATRIX_BYTES = {Matrix.Q_B: 100, Matrix.KV_B: 30, Matrix.O: 500}
"""What a rank of a toy group receives of each matrix and layer when it is gathered."""
WEIGHTS = "weights"
Content = PageId | str


def toy_arena(*, num_ranks: int, num_layers: int, ordinary: int, borrowed: int) -> ArenaMap:
    """An arena with so many slots of each kind; borrowed ones are dealt to the matrices in turn."""
    keys = [(layer, matrix) for layer in range(num_layers) for matrix in Matrix]
    slot_bytes = num_layers * LAYER_BYTES
    places = {
        key: MatrixPlace(
            layer=key[0],
            matrix=key[1],
            offset=0,
            own_bytes=0,
            full_bytes=MATRIX_BYTES[key[1]],
            borrowed=tuple(SlotId(slot) for slot in range(index, borrowed, len(keys))),
        )
        for index, key in enumerate(keys)
    }
    return ArenaMap(
        num_ranks=num_ranks,
        num_layers=num_layers,
        page_size=1,
        slot_bytes=slot_bytes,
        num_slots=ordinary + borrowed,
        places=MappingProxyType(places),
        region_slots=borrowed,
        lenders=MappingProxyType(lenders_of(places)),
        gap_bytes=0,
        arena_bytes=(ordinary + borrowed) * slot_bytes,
    )


class ArenaSimulator:
    """Symbolic arenas of all ranks of a group."""

    def __init__(self, table: PageTable, layout: Layout) -> None:
        arena = table.arena
        self._arena = arena
        self._ranks = [RankId(rank) for rank in range(arena.num_ranks)]
        self._held: dict[tuple[RankId, int, SlotId], Content] = {}
        self._pinned = {page for page in table.pages if table.is_pinned(page)}
        for layer in range(arena.num_layers):
            self._fill_weights(layer, RULES[layout].fills)
        for page in table.pages:
            for copy in table.copies(page):
                for layer in range(arena.num_layers):
                    assert (copy.rank, layer, copy.slot) not in self._held, "two users of a slot"
                    self._held[copy.rank, layer, copy.slot] = page
        self._frozen = {(copy.rank, copy.slot) for page in self._pinned for copy in table.copies(page)}

    def execute(self, manifest: SwitchManifest, *, staging_bytes: int) -> None:
        """Run a manifest in its documented order."""
        layers = list(range(self._arena.num_layers))
        page_bytes = self._arena.slot_bytes
        self._run_phase(manifest.boundary_chunks, layers, unit=page_bytes, staging_bytes=staging_bytes)
        for layer in layers:
            if layer not in manifest.ready_layers:
                self._fill_weights(layer, frozenset(manifest.gathered))
            self._run_phase(manifest.layer_chunks, [layer], unit=LAYER_BYTES, staging_bytes=staging_bytes)

    def assert_outcome(self, table: PageTable, layout: Layout) -> None:
        """Every copy that the table records is there on every layer, and so are replicated weights."""
        for page in table.pages:
            for copy in table.copies(page):
                for layer in range(self._arena.num_layers):
                    assert self._held[copy.rank, layer, copy.slot] == page
        for rank in self._ranks:
            for matrix in RULES[layout].fills:
                for slot in self._arena.lenders[matrix]:
                    for layer in range(self._arena.num_layers):
                        assert self._held[rank, layer, slot] == WEIGHTS

    def _run_phase(
        self, chunks: tuple[Chunk, ...], layers: list[int], *, unit: int, staging_bytes: int
    ) -> None:
        written: set[tuple[RankId, SlotId]] = set()
        for chunk in chunks:
            self._check_staging(chunk, unit=unit, staging_bytes=staging_bytes)
            assert not written & {(move.src, move.src_slot) for move in chunk}
            self._run(chunk, layers)
            written |= {(move.dst, move.dst_slot) for move in chunk}

    def _run(self, chunk: Chunk, layers: list[int]) -> None:
        assert len({(move.dst, move.dst_slot) for move in chunk}) == len(chunk), "a slot written twice"
        staged: list[tuple[PageMove, int, PageId]] = []
        for move in chunk:
            # It may be copied to further ranks, but leaves no slot.
            assert move.page not in self._pinned or move.src != move.dst
            assert (move.dst, move.dst_slot) not in self._frozen
            for layer in layers:
                content = self._held.get((move.src, layer, move.src_slot))
                assert content == move.page, f"{move} reads {content} in layer {layer}"
                staged.append((move, layer, move.page))
        for move, layer, page in staged:
            self._held[move.dst, layer, move.dst_slot] = page

    def _check_staging(self, chunk: Chunk, *, unit: int, staging_bytes: int) -> None:
        assert chunk, "an empty chunk"
        for side in (Counter(move.src for move in chunk), Counter(move.dst for move in chunk)):
            assert max(side.values()) * unit <= staging_bytes

    def _fill_weights(self, layer: int, matrices: Matrices) -> None:
        # A slot inside layer i's weights holds a page of *all* layers: the gather overwrites them all.
        for (owner, matrix), place in self._arena.places.items():
            if owner == layer and matrix in matrices:
                for rank in self._ranks:
                    for slot in place.borrowed:
                        for each in range(self._arena.num_layers):
                            self._held[rank, each, slot] = WEIGHTS
