"""The pieces of absorbed MLA that every layout is made of; all local to a rank.

The projections are taken from the arena as one of two views, SHARDED (this rank's heads) or REPLICATED
(all heads, rotated so that this rank's come first). Nothing here knows which layout is running.

Legend: N rows, H heads of the view, D = n + p, C = r + p, d hidden, Q = r_q (or d without q_lora).
"""

import torch
from torch import Tensor

from splash_core.attention.batch import Batch, IntArray
from splash_core.attention.context import RankContext
from splash_core.kernels import rows
from splash_core.kernels.base import WritePlaces
from splash_core.kernels.linear import linear, per_head, tall
from splash_core.kernels.rows import Angles
from splash_core.layout.layout import Matrix, Projection
from splash_core.model.norm import LATENT_EPS


def latents(ctx: RankContext, layer: int, x_ND: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    """What W_QB multiplies and what is cached, of the same rows; each contiguous.

    Returns:
        q_NQ, the normalised q_a row, or the hidden row without q_lora; and kv_NC, the normalised latent, then
        the rotated rope key.
    """
    down = ctx.weights.layers[layer].latent
    down_NX, interleaved = linear(x_ND, down.weight, down.bias), ctx.rotary.interleaved
    if down.q_norm is None:
        kv_NC = rows.norm_and_rotate(down_NX, down.kv_norm, LATENT_EPS, angles, interleaved=interleaved)
        return x_ND, kv_NC
    return rows.norm_latents(down_NX, down.q_norm, down.kv_norm, LATENT_EPS, angles, interleaved=interleaved)


def joined_latents(ctx: RankContext, layer: int, x_ND: Tensor, angles: Angles) -> Tensor:
    """`[N, Q + C]`: both results of `latents` in one row, as TP sends them."""
    down = ctx.weights.layers[layer].latent
    if down.q_norm is None:
        return torch.cat(latents(ctx, layer, x_ND, angles), dim=-1)
    return rows.norm_joined_latents(
        linear(x_ND, down.weight, down.bias),
        down.q_norm,
        down.kv_norm,
        LATENT_EPS,
        angles,
        interleaved=ctx.rotary.interleaved,
    )


def head_queries(ctx: RankContext, layer: int, q_NQ: Tensor, angles: Angles, kind: Projection) -> Tensor:
    """`[N, H, D]`: per-head queries, the rope part rotated."""
    w_HDQ = ctx.arena.projection(layer, Matrix.Q_B, kind)
    heads, head_dim, _ = w_HDQ.shape
    q_NHD = linear(q_NQ, w_HDQ.view(heads * head_dim, -1)).view(q_NQ.shape[0], heads, head_dim)
    return rows.rotate_tail(q_NHD, angles, start=ctx.spec.nope_dim, interleaved=ctx.rotary.interleaved)


def absorb(ctx: RankContext, layer: int, q_NHD: Tensor, kind: Projection) -> Tensor:
    """`[N, H, C]`: W_UK folded into the query, so that it attends to latent rows directly."""
    nope = ctx.spec.nope_dim
    w_uk_Hnr = ctx.arena.projection(layer, Matrix.KV_B, kind)[:, :nope]
    return per_head(q_NHD[..., :nope], w_uk_Hnr, tail=q_NHD[..., nope:])


def head_values(ctx: RankContext, layer: int, out_NHr: Tensor, kind: Projection) -> Tensor:
    """`[N, H, v]`: W_UV applied after attention."""
    w_uv_Hvr = ctx.arena.projection(layer, Matrix.KV_B, kind)[:, ctx.spec.nope_dim :]
    return per_head(out_NHr, w_uv_Hvr.mT)


def project_out(ctx: RankContext, layer: int, out_NHv: Tensor, kind: Projection) -> Tensor:
    """`[N, d]`: W_O over the view's heads; a partial sum when the view is sharded. No bias."""
    w_Hvd = ctx.arena.projection(layer, Matrix.O, kind)
    return tall(out_NHv.flatten(1), w_Hvd.view(-1, w_Hvd.shape[-1]))


def add_output_bias(ctx: RankContext, layer: int, out_ND: Tensor) -> Tensor:
    """Add W_O's bias, once, at home."""
    bias_d = ctx.weights.layers[layer].o_bias_D
    return out_ND if bias_d is None else out_ND + bias_d


def write_places(ctx: RankContext, batch: Batch, rows_N: IntArray) -> WritePlaces:
    """Where batch rows `rows_N` go on this rank; rows without a page here are skipped by `append_rows`."""
    return ctx.kernels.write_places(
        batch.slots_on(batch.rank)[rows_N], batch.position_N[rows_N] % batch.page_size
    )


def append_rows(ctx: RankContext, layer: int, rows_NC: Tensor, places: WritePlaces) -> None:
    """Write KV rows into this rank's pages of one layer."""
    ctx.kernels.append_rows(ctx.arena.layer(layer), rows_NC, places)
