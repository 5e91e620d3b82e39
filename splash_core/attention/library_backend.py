"""Attention through a library's kernels: absorbed by paged MLA plans, expanded by ragged prefill.

One plan per step serves all layers. It is made when a layer first asks for it, because only then are the
heads known; a step for a CUDA graph is planned at once, into the addresses that the graph reads.

Legend: N query rows, R runs, H heads, D = n + p, C = r + p, r latent rank, v width of a value, S slots,
P page size, K staged keys.
"""

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.backend import StagedRows
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.expanded import EXPANDED_BYTES, KeyGroup, attend_group, bytes_per_key, key_groups
from splash_core.attention.flashinfer_library import (
    TILE_ROWS,
    TILES_PER_PLAN,
    AttentionLibrary,
    GraphBuffers,
    MlaPlan,
)
from splash_core.attention.mla import absorb, head_values
from splash_core.attention.runs import Runs, paged_runs, staged_runs
from splash_core.kernels.base import IntArray, Kernels
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import Matrix, Projection


class LibraryAttention:
    """See the module. Only the step prepared last may be computed: its plans are taken over by the next.

    Args:
        library: the kernels.
        kernels: page gathers, and whose `upload` places indices.
    """

    def __init__(self, library: AttentionLibrary, kernels: Kernels) -> None:
        self.library = library
        self.kernels = kernels
        self._plans: list[MlaPlan] = []
        self._taken = 0

    def for_graph(self, buffers: GraphBuffers) -> "GraphAttention":
        """The backend of one captured step; it shares workspaces with this one."""
        return GraphAttention(self, buffers)

    def paged(self, batch: Batch, rows_N: IntArray) -> "LibraryPrepared":
        """As the protocol says."""
        self._taken = 0
        return LibraryPrepared(self, paged_runs(batch, rows_N))

    def staged(self, batch: Batch, rows_N: IntArray, keys: StagedRows) -> "LibraryPrepared":
        """As the protocol says."""
        self._taken = 0
        return LibraryPrepared(self, staged_runs(batch, rows_N, keys))

    def take_plan(self) -> MlaPlan:
        """One more plan for the current step."""
        if self._taken == len(self._plans):
            self._plans.append(self.library.mla_plan())
        self._taken += 1
        return self._plans[self._taken - 1]


class GraphAttention:
    """A backend whose one plan stays where a CUDA graph reads it; preparing a step replaces the plan."""

    def __init__(self, eager: LibraryAttention, buffers: GraphBuffers) -> None:
        self._eager = eager
        self._buffers = buffers
        self._plan = eager.library.graph_plan(buffers)

    def paged(self, batch: Batch, rows_N: IntArray) -> "LibraryPrepared":
        """As the protocol says, for a padded batch of decode rows."""
        runs = paged_runs(batch, rows_N)
        self._plan.plan(runs, heads=self._buffers.heads)
        planned = PlannedRuns([(slice(0, runs.num_rows), self._plan)], heads=self._buffers.heads)
        return LibraryPrepared(self._eager, runs, planned)

    def staged(self, batch: Batch, rows_N: IntArray, keys: StagedRows) -> "LibraryPrepared":
        """As the protocol says; staged steps are prefill steps, which are not captured."""
        return self._eager.staged(batch, rows_N, keys)


class PlannedRuns:
    """Absorbed attention of some runs, planned in one or more pieces for a number of heads."""

    def __init__(self, pieces: list[tuple[slice, MlaPlan]], *, heads: int) -> None:
        self.pieces = pieces
        self.heads = heads

    @classmethod
    def make(cls, backend: LibraryAttention, runs: Runs, heads: int) -> "PlannedRuns":
        """Plan `runs` within the library's limits."""
        if 2 * TILE_ROWS % heads:
            runs = runs.as_single_rows()
        pieces = []
        for rows, piece in runs.pieces(TILES_PER_PLAN * TILE_ROWS // (heads + TILE_ROWS)):
            plan = backend.take_plan()
            plan.plan(piece, heads=heads)
            pieces.append((rows, plan))
        return cls(pieces, heads=heads)

    def run(self, q_NHC: Tensor, pages_SPC: Tensor, latent: int) -> tuple[Tensor, Tensor]:
        """out_NHr and lse_NH (fp32)."""
        assert q_NHC.shape[1] == self.heads, f"{q_NHC.shape[1]} heads, planned for {self.heads}"
        out_NHr = q_NHC.new_empty(*q_NHC.shape[:2], latent)
        lse_NH = torch.empty(q_NHC.shape[:2], dtype=torch.float32, device=q_NHC.device)
        for rows, plan in self.pieces:
            plan.run(q_NHC[rows], pages_SPC, out_NHr[rows], lse_NH[rows])
        return out_NHr, lse_NH


class LibraryPrepared:
    """One step: see `PreparedAttention`."""

    def __init__(self, backend: LibraryAttention, runs: Runs, planned: PlannedRuns | None = None) -> None:
        self._backend = backend
        self._runs = runs
        self._all = planned
        self._singles: tuple[Tensor, PlannedRuns] | None = None
        self._groups: list[KeyGroup] | None = None

    def latent(self, ctx: RankContext, layer: int, q_NHC: Tensor) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        return self._plan_all(q_NHC.shape[1]).run(q_NHC, ctx.arena.layer(layer), ctx.spec.kv_lora_rank)

    def values(
        self,
        ctx: RankContext,
        layer: int,
        q_NHD: Tensor,
        *,
        kind: Projection,
        form: AttentionForm,
        staging_KC: Tensor | None = None,
    ) -> Tensor:
        """As the protocol says."""
        pages_SPC = ctx.arena.layer(layer) if staging_KC is None else staging_KC[:, None]
        if form is AttentionForm.ABSORBED or self._runs.are_single_rows:
            planned = self._plan_all(q_NHD.shape[1])
            return _absorbed(ctx, layer, q_NHD, planned, pages_SPC, kind)
        out_NHv = q_NHD.new_empty(*q_NHD.shape[:2], ctx.spec.v_dim)
        kv_b_HXr = ctx.arena.projection(layer, Matrix.KV_B, kind)
        for group in self._key_groups(kv_b_HXr, ctx.spec.rope_dim):
            attend_group(
                q_NHD,
                ctx.kernels.gather_pages(pages_SPC, group.slots_M).flatten(0, 1),
                kv_b_HXr,
                group,
                nope=ctx.spec.nope_dim,
                prefill=self._backend.library.prefill,
                out_NHv=out_NHv,
            )
        rows_B, planned = self._plan_singles(q_NHD.shape[1])
        if len(rows_B):
            out_NHv[rows_B] = _absorbed(ctx, layer, q_NHD[rows_B], planned, pages_SPC, kind)
        return out_NHv

    def _plan_all(self, heads: int) -> PlannedRuns:
        if self._all is None:
            self._all = PlannedRuns.make(self._backend, self._runs, heads)
        return self._all

    def _plan_singles(self, heads: int) -> tuple[Tensor, PlannedRuns]:
        """The rows that are runs of their own: one row does not pay for expanding its keys."""
        if self._singles is None:
            single_R: np.ndarray = self._runs.count_R == 1
            rows_B = self._backend.kernels.upload(self._runs.rows_of(single_R))
            planned = PlannedRuns.make(self._backend, self._runs.select(single_R), heads)
            self._singles = rows_B, planned
        return self._singles

    def _key_groups(self, kv_b_HXr: Tensor, rope: int) -> list[KeyGroup]:
        if self._groups is None:
            max_keys = EXPANDED_BYTES // (kv_b_HXr.shape[0] * bytes_per_key(kv_b_HXr, rope))
            self._groups = key_groups(self._runs, self._backend.kernels, max_keys=max_keys)
        return self._groups


def _absorbed(
    ctx: RankContext, layer: int, q_NHD: Tensor, planned: PlannedRuns, pages_SPC: Tensor, kind: Projection
) -> Tensor:
    q_NHC = absorb(ctx, layer, q_NHD, kind)
    out_NHr, _ = planned.run(q_NHC, pages_SPC, ctx.spec.kv_lora_rank)
    return head_values(ctx, layer, out_NHr, kind)
