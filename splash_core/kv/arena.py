"""A rank's one allocation, seen as KV pages and as projection weights at once (docs/model.md §3).

The arena never interprets who uses a slot: the leader's page tables say that. It only turns the pure
`ArenaMap` into tensor views whose addresses stay the same for the life of the process.

Legend: S slots of the whole arena, L layers, P page size (tokens), C = r + p (one latent row), H heads,
T ranks.
"""

import torch
from torch import Tensor

from splash_core.errors import InvariantBroken
from splash_core.ids import RankId
from splash_core.layout.layout import Matrix, Projection
from splash_core.layout.slots import ArenaMap
from splash_core.spec.model import ModelSpec


class Arena:
    """Views of a rank's memory.

    Args:
        arena_map: where everything lies.
        spec: the model.
        rank: this rank; its own shard comes first in every matrix.
        memory: `[≥ arena_bytes]` uint8, zero-filled at start (unwritten KV must be finite).
        dtype: of KV rows and projections.
    """

    def __init__(
        self, arena_map: ArenaMap, spec: ModelSpec, *, rank: RankId, memory: Tensor, dtype: torch.dtype
    ) -> None:
        num_bytes = arena_map.num_slots * arena_map.slot_bytes
        if memory.dtype != torch.uint8 or memory.numel() < num_bytes:
            raise InvariantBroken(
                f"arena needs {num_bytes} bytes of uint8, got {memory.numel()} {memory.dtype}"
            )
        self.map = arena_map
        self.spec = spec
        self.rank = rank
        self.dtype = dtype
        self._memory = memory[:num_bytes]
        row_dim = spec.kv_lora_rank + spec.rope_dim
        self.pages_SLPC = self._memory.view(dtype).view(
            arena_map.num_slots, spec.layers, arena_map.page_size, row_dim
        )
        self.shards = arena_map.num_ranks if spec.heads % arena_map.num_ranks == 0 else 1
        """Shards that a matrix is stored in: T, or 1 when heads do not divide (nothing is ever sharded)."""
        self._layers_SPC = [self.pages_SLPC[:, layer] for layer in range(spec.layers)]
        self._views = {
            (layer, matrix, kind): self._view(layer, matrix, kind)
            for layer, matrix in arena_map.places
            for kind in Projection
        }

    def layer(self, layer: int) -> Tensor:
        """`[S, P, C]`: one layer of every slot, a strided view."""
        return self._layers_SPC[layer]

    def pages(self, layer: int | None) -> Tensor:
        """`[S, …]`: one layer of every slot, or the whole slots where `layer` is None."""
        return self.pages_SLPC if layer is None else self._layers_SPC[layer]

    def projection(self, layer: int, matrix: Matrix, kind: Projection) -> Tensor:
        """A matrix in arena form, heads first; the sharded view is a prefix of the replicated one.

        Returns:
            Q_B `[h, n+p, r_q or d]`, KV_B `[h, n+v, r]`, O `[h, v, d]` with h = H/T (sharded: this rank's
            heads) or H (replicated: *rotated* head order, this rank's heads first).
        """
        return self._views[layer, matrix, kind]

    def shard(self, layer: int, matrix: Matrix, owner: int) -> Tensor:
        """`[H/T, …]`: where rank `owner`'s shard of a matrix lies on this rank (rotated order)."""
        heads = self.spec.heads // self.shards
        place = (owner - self.rank) % self.shards
        return self.projection(layer, matrix, Projection.REPLICATED)[place * heads : (place + 1) * heads]

    @property
    def head_rotation(self) -> int:
        """Global index of the first head of the replicated views."""
        return self.rank * (self.spec.heads // self.shards) if self.shards > 1 else 0

    def _view(self, layer: int, matrix: Matrix, kind: Projection) -> Tensor:
        place = self.map.places[layer, matrix]
        heads = self.spec.heads if kind is Projection.REPLICATED else self.spec.heads // self.shards
        shape = (heads, *self._head_shape(matrix))
        size = heads * shape[1] * shape[2] * self.dtype.itemsize
        return self._memory[place.offset : place.offset + size].view(self.dtype).view(shape)

    def _head_shape(self, matrix: Matrix) -> tuple[int, int]:
        spec = self.spec
        if matrix is Matrix.Q_B:
            return spec.nope_dim + spec.rope_dim, spec.q_lora_rank or spec.hidden
        if matrix is Matrix.KV_B:
            return spec.nope_dim + spec.v_dim, spec.kv_lora_rank
        return spec.v_dim, spec.hidden
