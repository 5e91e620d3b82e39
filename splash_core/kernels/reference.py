"""Plain-torch MLA attention over the page-major arena: the truth that faster kernels are tested against.

Softmax runs in max(fp32, model dtype), as the reference models do.

Legend: N query rows, B decode rows, H heads, K keys, M pages, P page size, C = r + p, r latent rank,
n/p/v head dims, S slots.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.dtypes import at_least_fp32

SCORE_TILE_ELEMENTS = 1 << 24
"""Scores held at once by chunk attention: bounds memory at long histories."""

EXPANDED_TILE_ELEMENTS = 1 << 26
"""Expanded keys and values held at once: heads are taken in tiles of this size."""


def gather_keys(pages_SPC: Tensor, slots_M: Tensor, num_keys: int) -> Tensor:
    """`[K, C]`: the written keys of the pages in `slots_M`, in order."""
    return pages_SPC[slots_M].view(-1, pages_SPC.shape[-1])[:num_keys]


def attend_absorbed(
    q_NHC: Tensor, kv_KC: Tensor, visible_NK: Tensor | None, *, scale: float, latent: int
) -> tuple[Tensor, Tensor]:
    """Absorbed MLA of several rows over one sequence's keys.

    Args:
        q_NHC: queries with W_UK folded in, then their rope part.
        kv_KC: latent rows.
        visible_NK: bool, True where a row may see a key; None: all visible.
        scale: softmax scale.
        latent: r.

    Returns:
        out_NHr and lse_NH (wide dtype); a row that sees no key gives out 0 and lse -inf.
    """
    num_rows, heads, _ = q_NHC.shape
    if num_rows == 0 or kv_KC.shape[0] == 0:
        return q_NHC.new_zeros(num_rows, heads, latent), _no_keys(q_NHC)
    tile = max(1, SCORE_TILE_ELEMENTS // (heads * kv_KC.shape[0]))
    outs, lses = [], []
    for first in range(0, num_rows, tile):
        q = q_NHC[first : first + tile]
        scores = torch.matmul(q.reshape(-1, q.shape[-1]), kv_KC.T).view(q.shape[0], heads, -1)
        mask = None if visible_NK is None else visible_NK[first : first + tile, None]
        weights, lse = _softmax(scores, mask, scale)
        out = torch.matmul(weights.to(kv_KC.dtype).view(-1, weights.shape[-1]), kv_KC[:, :latent])
        outs.append(out.view(q.shape[0], heads, latent))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def attend_decode(
    q_BHC: Tensor, pages_SPC: Tensor, slots_BM: Tensor, visible_BK: Tensor, *, scale: float, latent: int
) -> tuple[Tensor, Tensor]:
    """Absorbed MLA of one row each of B sequences over their own pages.

    Returns:
        out_BHr and lse_BH as in `attend_absorbed`.
    """
    batch, pages = slots_BM.shape
    kv_BKC = pages_SPC[slots_BM].view(batch, pages * pages_SPC.shape[1], -1)
    scores = torch.matmul(q_BHC, kv_BKC.mT)
    weights, lse_BH = _softmax(scores, visible_BK[:, None], scale)
    return torch.matmul(weights.to(kv_BKC.dtype), kv_BKC[..., :latent]), lse_BH


def attend_expanded(
    q_NHD: Tensor,
    kv_KC: Tensor,
    kv_b_HXr: Tensor,
    visible_NK: Tensor | None,
    *,
    scale: float,
    nope: int,
) -> Tensor:
    """Expanded MLA: keys and values of each head are made from the latent rows first.

    Exact like the absorbed form, with fewer flops per pair when many rows share the keys (docs/model.md §4).

    Args:
        q_NHD: queries `[n | p]`.
        kv_KC: latent rows `[r | p]`.
        kv_b_HXr: W_UK rows then W_UV rows of each head, X = n + v.
        visible_NK: as above; None means causal over equal positions 0 … N-1 (N == K).
        scale: softmax scale.
        nope: n.

    Returns:
        out_NHv.
    """
    heads, width, _ = kv_b_HXr.shape
    tile = max(1, EXPANDED_TILE_ELEMENTS // (kv_KC.shape[0] * (width + q_NHD.shape[-1])))
    parts = [
        _expanded_heads(q_NHD[:, at : at + tile], kv_KC, kv_b_HXr[at : at + tile], visible_NK, scale, nope)
        for at in range(0, heads, tile)
    ]
    return torch.cat(parts, dim=1)


def _expanded_heads(
    q_NHD: Tensor, kv_KC: Tensor, kv_b_HXr: Tensor, visible_NK: Tensor | None, scale: float, nope: int
) -> Tensor:
    heads, _, latent = kv_b_HXr.shape
    expanded_KX = torch.matmul(kv_KC[:, :latent], kv_b_HXr.reshape(-1, latent).T)
    expanded_HKX = expanded_KX.view(kv_KC.shape[0], heads, -1).transpose(0, 1)
    rope_HKp = kv_KC[:, latent:].expand(heads, -1, -1)
    out_HNv = F.scaled_dot_product_attention(
        q_NHD.transpose(0, 1)[None],
        torch.cat([expanded_HKX[..., :nope], rope_HKp], dim=-1)[None],
        expanded_HKX[..., nope:][None],
        attn_mask=None if visible_NK is None else visible_NK[None, None],
        is_causal=visible_NK is None,
        scale=scale,
    )[0]
    return out_HNv.transpose(0, 1)


def merge_by_lse(out_TNHv: Tensor, lse_TNH: Tensor) -> Tensor:
    """Merge partial attention outputs over disjoint keys (log-sum-exp; FlashAttention, Dao et al. 2022).

    Args:
        out_TNHv: partial outputs.
        lse_TNH: their log-sum-exps, -inf (and output 0) where a part saw no key.

    Returns:
        out_NHv in the dtype of `out_TNHv`; 0 where no part saw a key.
    """
    # Equal weights for a row that no part saw: a softmax over -inf alone would be NaN.
    unseen_NH = lse_TNH.amax(dim=0) == float("-inf")
    weights_TNH = torch.softmax(lse_TNH.masked_fill(unseen_NH, 0.0), dim=0)
    return (out_TNHv * weights_TNH.to(out_TNHv.dtype)[..., None]).sum(dim=0)


def _softmax(scores: Tensor, visible: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    scores = scores.to(at_least_fp32(scores.dtype)) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    top = scores.amax(dim=-1, keepdim=True)
    # A row without visible keys has top = -inf; 0 keeps exp() at 0 instead of NaN.
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    lse = (top + torch.log(total)).squeeze(-1)
    return weights / total.clamp_min(torch.finfo(weights.dtype).tiny), lse


def _no_keys(q_NHC: Tensor) -> Tensor:
    return torch.full(q_NHC.shape[:2], float("-inf"), dtype=at_least_fp32(q_NHC.dtype), device=q_NHC.device)
