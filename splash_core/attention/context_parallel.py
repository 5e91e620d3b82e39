"""CP: replicated projections, each history striped over the ranks by page.

Two ways to bring queries and keys together (docs/model.md §4), chosen per step by bytes, named in the plan:

* pass-Q (decode always, and chunks over long histories): rows go to the ranks that hold their history;
  each attends over its stripe with all heads, applies W_UV (linear, so merging after it is exact), and
  returns `(out, lse)` in global head order; home merges by log-sum-exp.
* pass-KV (chunks over short histories): the stripes of one layer are gathered, and rows attend at home.

The table of layouts stripes over all ranks, but nothing here assumes it: any owner set per request works.
"""

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.backend import StagedRows
from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch, IntArray
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
from splash_core.attention.routing import RowRoute
from splash_core.kernels.rows import Angles
from splash_core.layout.layout import Projection
from splash_core.layout.ownership import NO_SLOT

KIND = Projection.REPLICATED


class PassQueries(LayoutAttention):
    """CP by moving queries: see the module."""

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        super().__init__(ctx, batch)
        self._kv_route = RowRoute(ctx, batch, batch.writers_NT())
        self._places = write_places(ctx, batch, self._kv_route.received_N)
        self._q_route = RowRoute(ctx, batch, batch.holders_NT())
        asked_N = self._q_route.received_N
        self._attention = ctx.attention.paged(batch, asked_N)
        self._asked_N = ctx.kernels.upload(asked_N)
        self._asked_angles: Angles

    def begin(self) -> None:
        """Also look up the angles of the rows that come from other ranks."""
        super().begin()
        self._asked_angles = self.ctx.rotary.angles(self.positions_N[self._asked_N])

    @classmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """All heads of all rows, over its stripe."""
        return rows_per_rank * ctx.num_ranks, ctx.spec.heads

    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """As the base class says."""
        ctx = self.ctx
        q_NQ, kv_NC = latents(ctx, layer, x_ND, self.home_angles)
        append_rows(ctx, layer, self._kv_route.send(kv_NC, tag="cp.route_kv_rows"), self._places)
        q_NQ = self._q_route.send(q_NQ, tag="cp.q_to_owners")
        q_NHD = head_queries(ctx, layer, q_NQ, self._asked_angles, KIND)
        out_NHr, lse_NH = self._attention.latent(ctx, layer, absorb(ctx, layer, q_NHD, KIND))
        out_NHv = self._merge_at_home(head_values(ctx, layer, out_NHr, KIND), lse_NH)
        return add_output_bias(ctx, layer, project_out(ctx, layer, out_NHv, KIND))

    def _merge_at_home(self, out_NHv: Tensor, lse_NH: Tensor) -> Tensor:
        """Owners' `(out, lse)` → merged `[N_j, H, v]` in this rank's head order."""
        rotation = self.ctx.arena.head_rotation
        # One message: the lse rides along bit for bit, as one (or, in bf16, two) more values of each head.
        parts = torch.cat([out_NHv, lse_NH[..., None].view(out_NHv.dtype)], dim=-1).roll(rotation, dims=1)
        parts = self._q_route.give_back(parts, tag="cp.out_from_owners").roll(-rotation, dims=1)
        out_NHv, lse_NHx = parts.split([out_NHv.shape[-1], parts.shape[-1] - out_NHv.shape[-1]], dim=-1)
        lse_NH = lse_NHx.contiguous().view(lse_NH.dtype).squeeze(-1)
        return self.ctx.kernels.merge_by_lse(
            self._q_route.by_peer(out_NHv, fill=0.0), self._q_route.by_peer(lse_NH, fill=float("-inf"))
        )


class PassKeys(LayoutAttention):
    """CP by moving keys: see the module."""

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        super().__init__(ctx, batch)
        self._places = write_places(ctx, batch, np.arange(batch.num_rows))
        self._stripes, keys = _history_stripes(batch)
        self._own_slots = ctx.kernels.upload(self._stripes[ctx.rank])
        self._stripe_rows = [len(slots) * batch.page_size for slots in self._stripes]
        home_N = np.arange(batch.num_rows)[batch.home]
        self._attention = ctx.attention.staged(batch, home_N, keys)

    @classmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """All heads of its own rows."""
        return rows_per_rank, ctx.spec.heads

    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """As the base class says."""
        ctx, batch = self.ctx, self.batch
        q_NQ, kv_NC = latents(ctx, layer, x_ND, self.home_angles)
        chunk_NC = ctx.comm.all_gather_rows(kv_NC, batch.counts, tag="cp.gather_kv_rows")
        own_KC = ctx.kernels.gather_pages(ctx.arena.layer(layer), self._own_slots).flatten(0, 1)
        history_KC = ctx.comm.all_gather_rows(own_KC, self._stripe_rows, tag="cp.gather_history")
        append_rows(ctx, layer, chunk_NC, self._places)
        q_NHD = head_queries(ctx, layer, q_NQ, self.home_angles, KIND)
        out_NHv = self._attention.values(
            ctx,
            layer,
            q_NHD,
            kind=KIND,
            form=batch.form,
            staging_KC=torch.cat([history_KC, chunk_NC]),
        )
        return add_output_bias(ctx, layer, project_out(ctx, layer, out_NHv, KIND))


def _history_stripes(batch: Batch) -> tuple[list[IntArray], StagedRows]:
    """What each rank sends of the histories, and where each sequence's keys are in the staging tensor.

    Staging holds every rank's whole pages in rank order, then the step's own rows. A page that several
    ranks hold is sent by the first of them.

    Returns:
        Slots per rank, and per sequence (staging rows, positions) sorted by position.
    """
    slots: list[list[int]] = [[] for _ in range(batch.num_ranks)]
    found: list[tuple[int, int, int, int]] = []
    for index, sequence in enumerate(batch.sequences):
        pages = -(-sequence.start // batch.page_size)
        for page, row in enumerate(sequence.table_PT[:pages]):
            holder = int((row != NO_SLOT).argmax())
            found.append((index, page, holder, len(slots[holder])))
            slots[holder].append(int(row[holder]))
    first_row = np.concatenate([[0], np.cumsum([len(held) for held in slots])]) * batch.page_size
    keys: StagedRows = {}
    for index, sequence in enumerate(batch.sequences):
        pages = [
            (page, int(first_row[holder]) + place * batch.page_size)
            for owner, page, holder, place in found
            if owner == index
        ]
        offsets = np.arange(batch.page_size)
        rows = [offsets[: sequence.start - page * batch.page_size] + at for page, at in pages]
        own_N = (batch.sequence_N == index).nonzero()[0]
        own_N = own_N[np.argsort(batch.position_N[own_N])]
        keys[index] = (
            np.concatenate([*rows, own_N + first_row[-1]]).astype(np.int64),
            np.arange(sequence.end, dtype=np.int64),
        )
    return [np.asarray(held, dtype=np.int64) for held in slots], keys
