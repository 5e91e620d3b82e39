"""DOP: sharded projections, each history on its owner; queries travel to owners and back (docs/model.md §1).

Each layer (docs/model.md §4): gather q_a rows; own H/T heads' absorbed queries of all N rows; all-to-all to
owners, where all H heads attend over the owned history; all-to-all back; W_UV and W_O shard;
reduce-scatter. Home is the owner, so KV rows stay.
"""

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
    latent_queries,
    latent_rows,
    project_out,
    write_places,
)
from splash_core.layout.layout import Projection


class DecoupledOwnership(LayoutAttention):
    """See the module. What crosses ranks is in global head order: rank j's heads are block j."""

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
        append_rows(ctx, layer, latent_rows(ctx, layer, x_ND, self.home_angles), self._places)
        q_NQ = latent_queries(ctx, layer, x_ND)
        q_NQ = ctx.comm.all_gather_rows(q_NQ, batch.counts, tag="dop.gather_q")
        q_NHD = head_queries(ctx, layer, q_NQ, self.angles, Projection.SHARDED)
        q_NHC = self._heads_to_owners(absorb(ctx, layer, q_NHD, Projection.SHARDED))
        out_NHr, _ = self._attention.latent(ctx, layer, q_NHC)
        out_NHv = head_values(ctx, layer, self._heads_from_owners(out_NHr), Projection.SHARDED)
        partial_ND = project_out(ctx, layer, out_NHv, Projection.SHARDED)
        out_ND = ctx.comm.reduce_scatter_rows(partial_ND, batch.counts, tag="dop.scatter_out")
        return add_output_bias(ctx, layer, out_ND)

    def _heads_to_owners(self, q_NHC: Tensor) -> Tensor:
        """`[N, H/T, C]` of all rows → `[N_j, H, C]` of the rows owned here."""
        owned, ranks = self.batch.counts[self.ctx.rank], self.ctx.num_ranks
        received = self.ctx.comm.all_to_all_rows(
            q_NHC.contiguous(), self.batch.counts, [owned] * ranks, tag="dop.q_to_owners"
        )
        return received.view(ranks, owned, *q_NHC.shape[1:]).transpose(0, 1).flatten(1, 2)

    def _heads_from_owners(self, out_NHr: Tensor) -> Tensor:
        """`[N_j, H, r]` of the rows owned here → `[N, H/T, r]` of all rows."""
        owned, ranks = self.batch.counts[self.ctx.rank], self.ctx.num_ranks
        blocks = out_NHr.view(owned, ranks, out_NHr.shape[1] // ranks, out_NHr.shape[-1]).transpose(0, 1)
        return self.ctx.comm.all_to_all_rows(
            blocks.flatten(0, 1).contiguous(), [owned] * ranks, self.batch.counts, tag="dop.out_from_owners"
        )
