"""The memory account of docs/model.md §2: what each layout keeps on a rank, and what a switch has to supply.

Pure arithmetic over explicit inputs; (1) and (6) name its equations. Invariant: bytes are those of
what is *stored*, so scales and second copies of a matrix belong into `projection_bytes`, and an indexer's
keys into `token_bytes` (`cost.precision` counts both).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, KvHistory, Layout, LayoutRule, Matrix, Projection
from splash_core.layout.slots import MatrixPlace, can_shard, place_matrices
from splash_core.spec.model import ModelSpec


def exchanged_per_head(spec: ModelSpec, rule: LayoutRule) -> int:
    """Numbers that a row's query and output have per head on their way to its owner and back.

    An owner that has KV-B absorbs or expands by itself, so plain queries and values travel.
    """
    if rule.projections[Matrix.KV_B] is Projection.REPLICATED:
        return spec.qk_dim + spec.v_dim
    return spec.kv_row + spec.kv_lora_rank


def attention_buffer_bytes(
    spec: ModelSpec, layout: Layout, *, num_ranks: int, chunk_tokens: int, elem_bytes: int
) -> tuple[int, int]:
    """Bytes of absorbed queries and of attention outputs at the largest chunk and the worst owner skew.

    A rank attends for all rows with its own heads if it holds every history, else with all heads:
    for the whole chunk where one owner may own it, and for every rank's rows where it holds a stripe.
    """
    heads = spec.heads // num_ranks if RULES[layout].history is KvHistory.ALL else spec.heads
    rows_heads = chunk_tokens * heads * elem_bytes
    return rows_heads * spec.kv_row, rows_heads * spec.kv_lora_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccount:
    """One deployment's memory: a model on T ranks with so much memory each."""

    spec: ModelSpec
    num_ranks: int
    page_size: int
    projection_bytes: Mapping[Matrix, int]
    """Per layer, all heads, as stored: w_P by matrix."""
    token_bytes: int
    """Bytes of one token's KV over all layers: L·κ."""
    hbm_bytes: int
    fraction: float
    """μ: the part of HBM that may be used."""
    staging_bytes: int
    other_bytes: Mapping[Layout, int]
    """M_other: the rest of the model, activations, workspaces, graphs."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, which is one slot."""
        return self.page_size * self.token_bytes

    @property
    def budget_bytes(self) -> int:
        """μ·HBM less staging: what (6) compares a footprint with."""
        return int(self.hbm_bytes * self.fraction) - self.staging_bytes

    def can_run(self, layout: Layout) -> bool:
        """False when the layout shards heads that do not split over the ranks."""
        return can_shard(self.spec, self.num_ranks) or not RULES[layout].shards

    def weights_bytes(self, layout: Layout) -> int:
        """W_A·f: the projections that a rank keeps, all layers, each matrix by its own placement."""
        kinds = RULES[layout].projections
        return self.spec.num_mla_layers * sum(
            size // self.num_ranks if kinds[matrix] is Projection.SHARDED else size
            for matrix, size in self.projection_bytes.items()
        )

    def gap_bytes(self, layout: Layout) -> int:
        """Bytes of the weights region that hold neither weights nor pages in this layout."""
        places = self._places()
        region = self._region_pages(places) * self.page_bytes
        return region - self.weights_bytes(layout) - self._num_lent(layout, places) * self.page_bytes

    def borrowed_pages(self, layout: Layout) -> int:
        """Pages of a rank's pool that lie in room which other layouts need for weights."""
        return self._num_lent(layout, self._places())

    def footprint(self, layout: Layout, pages: Sequence[int]) -> tuple[int, ...]:
        """(1): bytes on each rank that holds so many distinct pages, `[T]`."""
        fixed = self.other_bytes[layout] + self.weights_bytes(layout) + self.gap_bytes(layout)
        return tuple(fixed + count * self.page_bytes for count in pages)

    def pool_pages(self, layout: Layout) -> int:
        """(6): pages that a rank can hold; negative when not even the fixed part fits."""
        fixed = self.footprint(layout, [0])[0]
        return (self.budget_bytes - fixed) // self.page_bytes

    def capacity(self, layout: Layout) -> Capacity:
        """What the group's pools hold."""
        return Capacity(
            rule=RULES[layout],
            num_ranks=self.num_ranks,
            page_size=self.page_size,
            pages=self.pool_pages(layout),
        )

    def distinct_tokens(self, layout: Layout) -> int:
        """Tokens of distinct history that the group holds."""
        return self.capacity(layout).distinct_tokens

    def longest_context(self, layout: Layout) -> int:
        """(6) with equality: tokens of the longest single request, as far as memory goes."""
        return self.capacity(layout).longest_request

    def _places(self) -> dict[tuple[int, Matrix], MatrixPlace]:
        return place_matrices(
            self.projection_bytes,
            layers=self.spec.num_mla_layers,
            shards=self.num_ranks if can_shard(self.spec, self.num_ranks) else 1,
            slot_bytes=self.page_bytes,
        )

    def _region_pages(self, places: Mapping[tuple[int, Matrix], MatrixPlace]) -> int:
        return -(-max(place.end for place in places.values()) // self.page_bytes)

    def _num_lent(self, layout: Layout, places: Mapping[tuple[int, Matrix], MatrixPlace]) -> int:
        lends = RULES[layout].lends
        return sum(len(place.borrowed) for place in places.values() if place.matrix in lends)
