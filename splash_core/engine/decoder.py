"""The decoder: one model object for all layouts.

Between attention blocks the residual stream is row-sharded by home in every layout; FFN rows are
gathered, computed on the rank's shard, and reduce-scattered home (docs/model.md §1).

Legend: N rows of the step, N_j at home here, d hidden, V vocabulary, M rows whose logits are wanted.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.layout.shares import balanced_range
from splash_core.model.embedding import embed_partial
from splash_core.model.logits import logits_partial
from splash_core.model.mlp import dense_ffn
from splash_core.model.moe import moe_ffn
from splash_core.model.norm import add_and_norm, rms_norm
from splash_core.model.shards import DenseShard


def hidden_rows(
    ctx: RankContext, batch: Batch, attention: LayoutAttention, wait_layer: Callable[[int], None]
) -> Tensor:
    """Run all layers.

    Args:
        ctx: the rank.
        batch: the step's rows.
        attention: the step's layout.
        wait_layer: called before a layer computes; returns when its state is in place.

    Returns:
        `[N_j, d]`: hidden rows at home here, before the final norm.
    """
    attention.begin()
    partial_ND = embed_partial(attention.tokens_N, ctx.weights.embedding)
    h_ND = ctx.comm.reduce_scatter_rows(partial_ND, batch.counts, tag="embed.scatter")
    layers, eps = ctx.weights.layers, ctx.spec.rms_eps
    x_ND = rms_norm(h_ND, layers[0].input_norm_D, eps)
    for layer, weights in enumerate(layers):
        wait_layer(layer)
        h_ND, x_ND = add_and_norm(h_ND, attention.forward(layer, x_ND), weights.post_norm_D, eps)
        ffn_ND = _ffn(ctx, batch, layer, x_ND)
        if layer + 1 == len(layers):
            return h_ND + ffn_ND
        h_ND, x_ND = add_and_norm(h_ND, ffn_ND, layers[layer + 1].input_norm_D, eps)
    return h_ND


def home_logits(ctx: RankContext, h_MD: Tensor, counts: Sequence[int]) -> Tensor:
    """`[M_j, V]` logits of home rows: the vocabulary-sharded head, gathered at home.

    Args:
        ctx: the rank.
        h_MD: hidden rows at home here, before the final norm.
        counts: such rows on each rank.
    """
    x_MD = rms_norm(h_MD, ctx.weights.final_norm_D, ctx.spec.rms_eps)
    x_MD = ctx.comm.all_gather_rows(x_MD, counts, tag="head.gather_rows")
    partial_MV = logits_partial(x_MD, ctx.weights.lm_head)
    mine = counts[ctx.rank]
    widths = _vocab_widths(ctx)
    # Vocabulary shards may differ by one column, so rows travel flattened.
    received = ctx.comm.all_to_all_rows(
        partial_MV.reshape(-1),
        [count * widths[ctx.rank] for count in counts],
        [mine * width for width in widths],
        tag="head.logits_home",
    )
    blocks = received.split([mine * width for width in widths])
    return torch.cat([block.view(mine, width) for block, width in zip(blocks, widths, strict=True)], dim=-1)


def _vocab_widths(ctx: RankContext) -> list[int]:
    ranges = (balanced_range(ctx.spec.vocab, ctx.num_ranks, rank) for rank in range(ctx.num_ranks))
    return [end - start for start, end in ranges]


def _ffn(ctx: RankContext, batch: Batch, layer: int, x_ND: Tensor) -> Tensor:
    rows_ND = ctx.comm.all_gather_rows(x_ND, batch.counts, tag="ffn.gather_rows")
    ffn = ctx.weights.layers[layer].ffn
    if isinstance(ffn, DenseShard):
        partial_ND = dense_ffn(rows_ND, ffn)
    else:
        partial_ND = moe_ffn(rows_ND, ffn, ctx.spec, ctx.kernels)
    return ctx.comm.reduce_scatter_rows(partial_ND, batch.counts, tag="ffn.scatter_out")
