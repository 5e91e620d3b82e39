"""Router and routed experts, with the reference's numerics for each family.

Every rank routes all rows (the router is small and whole on each rank) and computes its own experts, so the
sum over ranks of `moe_ffn` is the layer's output and nothing but rows crosses ranks.

Legend: N rows, D hidden, E experts, G groups, K experts per row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.base import Experts, Kernels
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.model.mlp import dense_ffn
from splash_core.model.shards import MoeShard
from splash_core.spec.model import Family, ModelSpec, MoeSpec


def _group_mask(scores_NG: Tensor, moe: MoeSpec) -> Tensor:
    """True for the experts of each row's best `top_groups` groups: `[N, E]`."""
    best = scores_NG.topk(moe.top_groups, dim=-1, sorted=False).indices
    mask_NG = torch.zeros_like(scores_NG, dtype=torch.bool).scatter_(1, best, True)  # noqa: FBT003
    return mask_NG.repeat_interleave(moe.num_experts // moe.num_groups, dim=1)


def _route_v2(logits_NE: Tensor, moe: MoeSpec) -> tuple[Tensor, Tensor]:
    scores_NE = logits_NE.softmax(dim=-1)
    if moe.group_limited:
        group_NG = scores_NE.view(-1, moe.num_groups, moe.num_experts // moe.num_groups).amax(dim=-1)
        scores_NE = scores_NE.masked_fill(~_group_mask(group_NG, moe), 0.0)
    weights_NK, ids_NK = scores_NE.topk(moe.top_k, dim=-1, sorted=False)
    return ids_NK, weights_NK * moe.scale


def _route_v3(logits_NE: Tensor, bias_E: Tensor, moe: MoeSpec) -> tuple[Tensor, Tensor]:
    scores_NE = logits_NE.sigmoid()
    choice_NE = scores_NE + bias_E
    if moe.top_groups < moe.num_groups:
        per_group = moe.num_experts // moe.num_groups
        best_two = choice_NE.view(-1, moe.num_groups, per_group).topk(min(2, per_group), dim=-1).values
        choice_NE = choice_NE.masked_fill(~_group_mask(best_two.sum(dim=-1), moe), float("-inf"))
    ids_NK = choice_NE.topk(moe.top_k, dim=-1, sorted=False).indices
    weights_NK = scores_NE.gather(1, ids_NK)
    if moe.normalize_top_k:
        weights_NK = weights_NK / (weights_NK.sum(dim=-1, keepdim=True) + 1e-20)
    return ids_NK, weights_NK * moe.scale


def _route_on_gpu(logits_NE: Tensor, bias_E: Tensor | None, spec: ModelSpec) -> tuple[Tensor, Tensor]:
    from splash_core.kernels.triton_router import RouterRule, route

    moe = spec.moe
    assert moe is not None
    rule = RouterRule(
        sigmoid=spec.family is not Family.V2,
        groups=moe.num_groups,
        top_groups=moe.top_groups if moe.group_limited else moe.num_groups,
        top_k=moe.top_k,
        normalize=moe.normalize_top_k,
        scale=moe.scale,
    )
    return route(logits_NE, bias_E, rule)


def _logits(x_ND: Tensor, gate_ED: Tensor, work: torch.dtype) -> Tensor:
    """`[N, E]` in `work`. Products of bf16 numbers are exact in fp32, so there nothing is copied first."""
    if x_ND.is_cuda and x_ND.dtype is gate_ED.dtype is torch.bfloat16:
        return torch.mm(x_ND, gate_ED.t(), out_dtype=work)
    return F.linear(x_ND.to(work), gate_ED.to(work))


def route(x_ND: Tensor, shard: MoeShard, spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Each row's experts and their weights: ids `[N, K]`, weights `[N, K]` in at least fp32."""
    assert spec.moe is not None
    work = at_least_fp32(x_ND.dtype)
    logits_NE = _logits(x_ND, shard.gate_ED, work)
    bias_E = None if spec.family is Family.V2 else shard.correction_bias_E
    assert spec.family is Family.V2 or bias_E is not None
    if logits_NE.is_cuda and work is torch.float32:
        return _route_on_gpu(logits_NE, bias_E, spec)
    if bias_E is None:
        return _route_v2(logits_NE, spec.moe)
    return _route_v3(logits_NE, bias_E.to(work), spec.moe)


def moe_ffn(x_ND: Tensor, shard: MoeShard, spec: ModelSpec, kernels: Kernels) -> Tensor:
    """This rank's term of the MoE layer's sum over ranks: its experts and its share of the shared ones."""
    (ids_NK, weights_NK), out_ND = kernels.side_by_side(
        lambda: route(x_ND, shard, spec),
        lambda: torch.zeros_like(x_ND) if shard.shared is None else dense_ffn(x_ND, shard.shared),
    )
    experts = Experts(
        first=shard.first,
        num_in_layer=shard.gate_ED.shape[0],
        gate_up_EXD=shard.gate_up,
        down_EDI=shard.down,
    )
    kernels.moe_experts(out_ND, x_ND, ids_NK, weights_NK, experts)
    return out_ND
