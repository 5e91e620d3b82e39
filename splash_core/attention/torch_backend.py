"""Attention in plain torch: right on any device and in any element type, the truth for the other backends.

Legend: N rows, H heads of the view, D = n + p, C = r + p, r latent rank, v width of a value, K keys.
"""

import torch
from torch import Tensor

from splash_core.attention.backend import StagedRows
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.mla import absorb, head_values
from splash_core.attention.work import AttentionWork, ChunkGroup, PagedKeys, paged_work, staged_work
from splash_core.kernels.base import IntArray, Kernels
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.kernels.reference import attend_absorbed, attend_decode, attend_expanded, gather_keys
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import Matrix, Projection


class TorchAttention:
    """See the module.

    Args:
        kernels: whose `upload` places indices.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def paged(self, batch: Batch, rows_N: IntArray) -> "TorchPrepared":
        """As the protocol says."""
        return TorchPrepared(paged_work(batch, rows_N, self._kernels))

    def staged(self, batch: Batch, rows_N: IntArray, keys: StagedRows) -> "TorchPrepared":
        """As the protocol says."""
        return TorchPrepared(staged_work(batch, rows_N, keys, self._kernels))


class TorchPrepared:
    """Groups of rows, one after the other."""

    def __init__(self, work: AttentionWork) -> None:
        self._work = work

    def latent(self, ctx: RankContext, layer: int, q_NHC: Tensor) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        latent = ctx.spec.kv_lora_rank
        pages_SPC = ctx.arena.layer(layer)
        out_NHr = q_NHC.new_empty(*q_NHC.shape[:2], latent)
        lse_NH = torch.empty(q_NHC.shape[:2], dtype=at_least_fp32(q_NHC.dtype), device=q_NHC.device)
        for group in self._work.decodes:
            out_NHr[group.rows_B], lse_NH[group.rows_B] = attend_decode(
                q_NHC[group.rows_B],
                pages_SPC,
                group.slots_BM,
                group.visible_BK,
                scale=ctx.scale,
                latent=latent,
            )
        for group in self._work.chunks:
            kv_KC = _keys(group, pages_SPC)
            out_NHr[group.rows_N], lse_NH[group.rows_N] = attend_absorbed(
                q_NHC[group.rows_N], kv_KC, _visible(group), scale=ctx.scale, latent=latent
            )
        return out_NHr, lse_NH

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
        out_NHv = q_NHD.new_empty(*q_NHD.shape[:2], ctx.spec.v_dim)
        pages_SPC = ctx.arena.layer(layer)
        latent = ctx.spec.kv_lora_rank
        for group in self._work.decodes:
            q_BHC = absorb(ctx, layer, q_NHD[group.rows_B], kind)
            out_BHr, _ = attend_decode(
                q_BHC, pages_SPC, group.slots_BM, group.visible_BK, scale=ctx.scale, latent=latent
            )
            out_NHv[group.rows_B] = head_values(ctx, layer, out_BHr, kind)
        for group in self._work.chunks:
            kv_KC = _keys(group, pages_SPC) if staging_KC is None else _staged(group, staging_KC)
            # One row does not pay for expanding its keys.
            expand = form is AttentionForm.EXPANDED and len(group.rows_N) > 1
            attend_chunk = _chunk_expanded if expand else _chunk_absorbed
            out_NHv[group.rows_N] = attend_chunk(ctx, layer, q_NHD[group.rows_N], kv_KC, group, kind)
        return out_NHv


def _chunk_expanded(
    ctx: RankContext, layer: int, q_NHD: Tensor, kv_KC: Tensor, group: ChunkGroup, kind: Projection
) -> Tensor:
    kv_b_HXr = ctx.arena.projection(layer, Matrix.KV_B, kind)
    visible_NK = None if group.causal_from_zero else _visible(group)
    return attend_expanded(q_NHD, kv_KC, kv_b_HXr, visible_NK, scale=ctx.scale, nope=ctx.spec.nope_dim)


def _chunk_absorbed(
    ctx: RankContext, layer: int, q_NHD: Tensor, kv_KC: Tensor, group: ChunkGroup, kind: Projection
) -> Tensor:
    q_NHC = absorb(ctx, layer, q_NHD, kind)
    out_NHr, _ = attend_absorbed(q_NHC, kv_KC, _visible(group), scale=ctx.scale, latent=ctx.spec.kv_lora_rank)
    return head_values(ctx, layer, out_NHr, kind)


def _keys(group: ChunkGroup, pages_SPC: Tensor) -> Tensor:
    assert isinstance(group.keys, PagedKeys)
    return gather_keys(pages_SPC, group.keys.slots_M, len(group.keys.positions_K))


def _staged(group: ChunkGroup, staging_KC: Tensor) -> Tensor:
    assert not isinstance(group.keys, PagedKeys)
    return staging_KC[group.keys.rows_K]


def _visible(group: ChunkGroup) -> Tensor:
    return group.keys.positions_K <= group.positions_N[:, None]
