"""TP: sharded projections, every history on every rank.

Each layer (docs/model.md §4): gather `[q_a | c_kv | k_rope]` rows, append all of them, own H/T heads attend
over all requests, W_UV and W_O shard, reduce-scatter to homes.
"""

import numpy as np
from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.mla import (
    add_output_bias,
    append_rows,
    head_queries,
    joined_latents,
    project_out,
    write_places,
)
from splash_core.layout.layout import Projection


class TensorParallel(LayoutAttention):
    """See the module."""

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        super().__init__(ctx, batch)
        rows_N = np.arange(batch.num_rows)
        self._attention = ctx.attention.paged(batch, rows_N)
        self._places = write_places(ctx, batch, rows_N)

    @classmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """Its own heads of all rows."""
        return rows_per_rank * ctx.num_ranks, ctx.spec.heads // ctx.num_ranks

    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """As the base class says."""
        ctx, batch = self.ctx, self.batch
        home_NX = joined_latents(ctx, layer, x_ND, self.home_angles)
        rows_NX = ctx.comm.all_gather_rows(home_NX, batch.counts, tag="tp.gather_rows")
        q_NQ, kv_NC = rows_NX.split([ctx.spec.q_in, ctx.spec.kv_row], dim=-1)
        append_rows(ctx, layer, kv_NC, self._places)
        q_NHD = head_queries(ctx, layer, q_NQ, self.angles, Projection.SHARDED)
        out_NHv = self._attention.values(ctx, layer, q_NHD, kind=Projection.SHARDED, form=batch.form)
        partial_ND = project_out(ctx, layer, out_NHv, Projection.SHARDED)
        out_ND = ctx.comm.reduce_scatter_rows(partial_ND, batch.counts, tag="tp.scatter_out")
        return add_output_bias(ctx, layer, out_ND)
