"""DOP and DOP-P: W_QB and W_O by heads, each history on its owner; queries travel to owners and back.

Each layer (docs/model.md §4): gather q_a rows; own H/T heads' queries of all N rows; all-to-all to owners,
where all H heads attend over the owned history; all-to-all back; W_O shard; reduce-scatter. Home is the
owner, so KV rows stay. The two differ in where KV-B is, and so in which numbers travel:

* DOP shards it: absorbed queries go out (r + p a head), latent outputs come back (r), W_UV follows.
* DOP-P replicates it: plain queries go out (n + p), values come back (v), and an owner may expand its keys.

What crosses ranks is in global head order: rank j's heads are block j.

Legend: N rows, N_j of them owned here, H heads, T ranks, D = n + p, C = r + p, X any width.
"""

from abc import abstractmethod

import numpy as np
from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.mla import (
    absorb,
    add_output_bias,
    append_rows,
    head_queries,
    head_values,
    latents,
    project_out,
    write_places,
)
from splash_core.layout.layout import Projection


class _Decoupled(LayoutAttention):
    """What both have in common; a subclass attends."""

    tag: str
    """First part of the names under which collectives are counted."""

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        super().__init__(ctx, batch)
        home_N = np.arange(batch.num_rows)[batch.home]
        self._attention = ctx.attention.paged(batch, home_N)
        self._places = write_places(ctx, batch, home_N)

    @classmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """All heads of the rows it owns."""
        return rows_per_rank, ctx.spec.heads

    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """As the base class says."""
        ctx, batch = self.ctx, self.batch
        q_NQ, kv_NC = latents(ctx, layer, x_ND, self.home_angles)
        append_rows(ctx, layer, kv_NC, self._places)
        q_NQ = ctx.comm.all_gather_rows(q_NQ, batch.counts, tag=f"{self.tag}.gather_q")
        q_NHD = head_queries(ctx, layer, q_NQ, self.angles, Projection.SHARDED)
        partial_ND = project_out(ctx, layer, self._attend(layer, q_NHD), Projection.SHARDED)
        out_ND = ctx.comm.reduce_scatter_rows(partial_ND, batch.counts, tag=f"{self.tag}.scatter_out")
        return add_output_bias(ctx, layer, out_ND)

    @abstractmethod
    def _attend(self, layer: int, q_NHD: Tensor) -> Tensor:
        """Queries `[N, H/T, D]` of all rows → values `[N, H/T, v]` of all rows, both of the own heads."""

    def _heads_to_owners(self, q_NHX: Tensor) -> Tensor:
        """`[N, H/T, X]` of all rows → `[N_j, H, X]` of the rows owned here."""
        owned, ranks = self.batch.counts[self.ctx.rank], self.ctx.num_ranks
        received = self.ctx.comm.all_to_all_rows(
            q_NHX.contiguous(), self.batch.counts, [owned] * ranks, tag=f"{self.tag}.q_to_owners"
        )
        return received.view(ranks, owned, *q_NHX.shape[1:]).transpose(0, 1).flatten(1, 2)

    def _heads_from_owners(self, out_NHX: Tensor) -> Tensor:
        """`[N_j, H, X]` of the rows owned here → `[N, H/T, X]` of all rows."""
        owned, ranks = self.batch.counts[self.ctx.rank], self.ctx.num_ranks
        blocks = out_NHX.view(owned, ranks, out_NHX.shape[1] // ranks, out_NHX.shape[-1]).transpose(0, 1)
        return self.ctx.comm.all_to_all_rows(
            blocks.flatten(0, 1).contiguous(),
            [owned] * ranks,
            self.batch.counts,
            tag=f"{self.tag}.out_from_owners",
        )


class DecoupledOwnership(_Decoupled):
    """DOP: see the module."""

    tag = "dop"

    def _attend(self, layer: int, q_NHD: Tensor) -> Tensor:
        ctx = self.ctx
        q_NHC = self._heads_to_owners(absorb(ctx, layer, q_NHD, Projection.SHARDED))
        out_NHr, _ = self._attention.latent(ctx, layer, q_NHC)
        return head_values(ctx, layer, self._heads_from_owners(out_NHr), Projection.SHARDED)


class DecoupledWithKvB(_Decoupled):
    """DOP-P: see the module."""

    tag = "dop_p"

    def _attend(self, layer: int, q_NHD: Tensor) -> Tensor:
        ctx, rotation = self.ctx, self.ctx.arena.head_rotation
        q_NHD = self._heads_to_owners(q_NHD).roll(-rotation, dims=1)
        out_NHv = self._attention.values(ctx, layer, q_NHD, kind=Projection.REPLICATED, form=self.batch.form)
        return self._heads_from_owners(out_NHv.roll(rotation, dims=1))
