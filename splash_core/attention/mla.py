"""The pieces of absorbed MLA that every layout is made of; all local to a rank.

The projections are taken from the arena as one of two views, SHARDED (this rank's heads) or REPLICATED
(all heads, rotated so that this rank's come first). Nothing here knows which layout is running.

Legend: N rows, H heads of the view, D = n + p, C = r + p, d hidden, Q = r_q (or d without q_lora).
"""

import torch
from torch import Tensor

from splash_core.attention.batch import Batch, IntArray
from splash_core.attention.context import Angles, RankContext
from splash_core.attention.work import AttentionWork, ChunkGroup, PagedKeys
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.kernels.linear import linear
from splash_core.kernels.reference import (
    attend_absorbed,
    attend_decode,
    attend_expanded,
    gather_keys,
)
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import Matrix, Projection
from splash_core.layout.ownership import NO_SLOT
from splash_core.model.norm import LATENT_EPS, rms_norm
from splash_core.model.shards import LatentWeights


def latent_queries(ctx: RankContext, layer: int, x_ND: Tensor) -> Tensor:
    """`[N, Q]`: what W_QB multiplies: the normalised q_a row, or the hidden row without q_lora."""
    q_a = ctx.weights.layers[layer].q_a
    if q_a is None:
        return x_ND
    return rms_norm(_linear(x_ND, q_a), q_a.norm, LATENT_EPS)


def latent_rows(ctx: RankContext, layer: int, x_ND: Tensor, angles: Angles) -> Tensor:
    """`[N, C]`: the KV rows to cache: normalised latent, then the rotated rope key."""
    kv_a = ctx.weights.layers[layer].kv_a
    rows_NC = _linear(x_ND, kv_a)
    latent = ctx.spec.kv_lora_rank
    return torch.cat(
        [
            rms_norm(rows_NC[:, :latent], kv_a.norm, LATENT_EPS),
            ctx.rotary.apply(rows_NC[:, latent:], angles),
        ],
        dim=-1,
    )


def head_queries(ctx: RankContext, layer: int, q_NQ: Tensor, angles: Angles, kind: Projection) -> Tensor:
    """`[N, H, D]`: per-head queries, the rope part rotated."""
    w_HDQ = ctx.arena.projection(layer, Matrix.Q_B, kind)
    heads, head_dim, _ = w_HDQ.shape
    q_NHD = linear(q_NQ, w_HDQ.view(heads * head_dim, -1)).view(q_NQ.shape[0], heads, head_dim)
    nope = ctx.spec.nope_dim
    return torch.cat([q_NHD[..., :nope], ctx.rotary.apply(q_NHD[..., nope:], angles)], dim=-1)


def absorb(ctx: RankContext, layer: int, q_NHD: Tensor, kind: Projection) -> Tensor:
    """`[N, H, C]`: W_UK folded into the query, so that it attends to latent rows directly."""
    nope = ctx.spec.nope_dim
    w_uk_Hnr = ctx.arena.projection(layer, Matrix.KV_B, kind)[:, :nope]
    latent_HNr = torch.matmul(q_NHD[..., :nope].transpose(0, 1), w_uk_Hnr)
    return torch.cat([latent_HNr.transpose(0, 1), q_NHD[..., nope:]], dim=-1)


def head_values(ctx: RankContext, layer: int, out_NHr: Tensor, kind: Projection) -> Tensor:
    """`[N, H, v]`: W_UV applied after attention."""
    w_uv_Hvr = ctx.arena.projection(layer, Matrix.KV_B, kind)[:, ctx.spec.nope_dim :]
    return torch.matmul(out_NHr.transpose(0, 1), w_uv_Hvr.mT).transpose(0, 1)


def project_out(ctx: RankContext, layer: int, out_NHv: Tensor, kind: Projection) -> Tensor:
    """`[N, d]`: W_O over the view's heads; a partial sum when the view is sharded. No bias."""
    w_Hvd = ctx.arena.projection(layer, Matrix.O, kind)
    return torch.matmul(out_NHv.flatten(1), w_Hvd.view(-1, w_Hvd.shape[-1]))


def add_output_bias(ctx: RankContext, layer: int, out_ND: Tensor) -> Tensor:
    """Add W_O's bias, once, at home."""
    bias_d = ctx.weights.layers[layer].o_bias_D
    return out_ND if bias_d is None else out_ND + bias_d


def append_rows(ctx: RankContext, layer: int, rows_NC: Tensor, places: "WritePlaces") -> None:
    """Write KV rows into this rank's pages of one layer."""
    if len(places.rows_N):
        ctx.arena.layer(layer)[places.slots_N, places.offsets_N] = rows_NC[places.rows_N]


class WritePlaces:
    """Where the rows given to `append_rows` go on this rank; rows without a page here are left out."""

    def __init__(self, batch: Batch, rows_N: IntArray, device: torch.device) -> None:
        slots_N = batch.slots_on(batch.rank)[rows_N]
        kept = (slots_N != NO_SLOT).nonzero()[0]
        self.rows_N = torch.from_numpy(kept).to(device)
        self.slots_N = torch.from_numpy(slots_N[kept]).to(device)
        self.offsets_N = torch.from_numpy(batch.position_N[rows_N[kept]] % batch.page_size).to(device)


def attend_latent(ctx: RankContext, layer: int, q_NHC: Tensor, work: AttentionWork) -> tuple[Tensor, Tensor]:
    """Absorbed attention of this rank's query rows over this rank's pages.

    Returns:
        out_NHr and lse_NH.
    """
    latent = ctx.spec.kv_lora_rank
    pages_SPC = ctx.arena.layer(layer)
    out_NHr = q_NHC.new_empty(*q_NHC.shape[:2], latent)
    lse_NH = torch.empty(q_NHC.shape[:2], dtype=at_least_fp32(q_NHC.dtype), device=q_NHC.device)
    for group in work.decodes:
        out_NHr[group.rows_B], lse_NH[group.rows_B] = attend_decode(
            q_NHC[group.rows_B], pages_SPC, group.slots_BM, group.visible_BK, scale=ctx.scale, latent=latent
        )
    for group in work.chunks:
        kv_KC = _keys(group, pages_SPC)
        out_NHr[group.rows_N], lse_NH[group.rows_N] = attend_absorbed(
            q_NHC[group.rows_N], kv_KC, _visible(group), scale=ctx.scale, latent=latent
        )
    return out_NHr, lse_NH


def attend_values(
    ctx: RankContext,
    layer: int,
    q_NHD: Tensor,
    work: AttentionWork,
    *,
    kind: Projection,
    form: AttentionForm,
    staging_KC: Tensor | None = None,
) -> Tensor:
    """Attention and W_UV where a rank holds both the keys and the KV-B of the query's heads.

    Chunks take the form that the plan names; decode rows are always absorbed.

    Args:
        ctx: the rank.
        layer: layer index.
        q_NHD: queries of the view's heads.
        work: groups over the same rows.
        kind: which view of the projections.
        form: for chunks.
        staging_KC: keys gathered for this layer, when the work refers to them.

    Returns:
        out_NHv.
    """
    out_NHv = q_NHD.new_empty(*q_NHD.shape[:2], ctx.spec.v_dim)
    pages_SPC = ctx.arena.layer(layer)
    latent = ctx.spec.kv_lora_rank
    for group in work.decodes:
        q_BHC = absorb(ctx, layer, q_NHD[group.rows_B], kind)
        out_BHr, _ = attend_decode(
            q_BHC, pages_SPC, group.slots_BM, group.visible_BK, scale=ctx.scale, latent=latent
        )
        out_NHv[group.rows_B] = head_values(ctx, layer, out_BHr, kind)
    for group in work.chunks:
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


def _linear(x_ND: Tensor, down: LatentWeights) -> Tensor:
    return linear(x_ND, down.weight, down.bias)
