"""DP-attention: replicated projections, each history on its owner; nothing crosses ranks."""

import numpy as np
from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.mla import (
    add_output_bias,
    append_rows,
    head_queries,
    latents,
    project_out,
    write_places,
)
from splash_core.layout.layout import Projection


class DataParallel(LayoutAttention):
    """See the module. Home is the owner, so a rank appends and attends its home rows."""

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        super().__init__(ctx, batch)
        home_N = np.arange(batch.num_rows)[batch.home]
        self._attention = ctx.attention.paged(batch, home_N)
        self._places = write_places(ctx, batch, home_N)

    @classmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """All heads of its own rows."""
        return rows_per_rank, ctx.spec.heads

    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """As the base class says."""
        ctx = self.ctx
        q_NQ, kv_NC = latents(ctx, layer, x_ND, self.home_angles)
        append_rows(ctx, layer, kv_NC, self._places)
        q_NHD = head_queries(ctx, layer, q_NQ, self.home_angles, Projection.REPLICATED)
        out_NHv = self._attention.values(ctx, layer, q_NHD, kind=Projection.REPLICATED, form=self.batch.form)
        return add_output_bias(ctx, layer, project_out(ctx, layer, out_NHv, Projection.REPLICATED))
