"""The router's choice of experts on GPUs, as one Triton kernel: a program per row.

The rule is `model/moe.py`'s. Where scores tie, the lower number wins.

Legend: N rows, E experts, G groups, K experts per row.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRule:
    """How a family chooses and weighs experts."""

    sigmoid: bool
    """Scores are sigmoids and groups count their two best; else a softmax, and groups count their best."""
    groups: int
    top_groups: int
    """Groups that a row may choose from; all of them: no limit."""
    top_k: int
    normalize: bool
    scale: float


@triton.jit
def _limit_to_groups(
    choice,
    expert,
    excluded,
    experts: tl.constexpr,
    groups: tl.constexpr,
    top_groups: tl.constexpr,
    two_best: tl.constexpr,
    group_block: tl.constexpr,
):
    """`choice` with `excluded` for the experts outside the row's best groups."""
    per_group: tl.constexpr = experts // groups
    group_of = expert // per_group
    group = tl.arange(0, group_block)
    best = tl.full([group_block], float("-inf"), tl.float32)
    for index in tl.static_range(groups):
        own = tl.where(group_of == index, choice, float("-inf"))
        value = tl.max(own, axis=0)
        if two_best:
            rest = tl.where(expert == tl.argmax(own, axis=0), float("-inf"), own)
            value += tl.max(rest, axis=0)
        best = tl.where(group == index, value, best)
    tie = (best[None, :] == best[:, None]) & (group[None, :] < group[:, None])
    place = tl.sum(((best[None, :] > best[:, None]) | tie).to(tl.int32), axis=1)
    for index in tl.static_range(groups):
        place_of_group = tl.sum(tl.where(group == index, place, 0), axis=0)
        dropped = (group_of == index) & (expert < experts) & (place_of_group >= top_groups)
        choice = tl.where(dropped, excluded, choice)
    return choice


@triton.jit
def _take_best(
    choice,
    score,
    expert,
    experts: tl.constexpr,
    top_k: tl.constexpr,
    block: tl.constexpr,
    choice_block: tl.constexpr,
):
    """Numbers and scores of the `top_k` experts with the highest `choice`."""
    number = tl.arange(0, choice_block)
    ids = tl.zeros([choice_block], tl.int64)
    weights = tl.zeros([choice_block], tl.float32)
    free = expert < experts
    for index in tl.static_range(top_k):
        top = tl.max(tl.where(free, choice, float("-inf")), axis=0)
        # Excluded experts may be as low as what is taken, so only free ones count.
        best = tl.min(tl.where(free & (choice == top), expert, block), axis=0)
        value = tl.sum(tl.where(expert == best, score, 0.0), axis=0)
        ids = tl.where(number == index, best.to(tl.int64), ids)
        weights = tl.where(number == index, value, weights)
        free = free & (expert != best)
    return ids, weights


@triton.jit
def _route(
    logits,
    bias,
    ids,
    weights,
    scale,
    experts: tl.constexpr,
    groups: tl.constexpr,
    top_groups: tl.constexpr,
    top_k: tl.constexpr,
    sigmoid: tl.constexpr,
    normalize: tl.constexpr,
    two_best: tl.constexpr,
    block: tl.constexpr,
    group_block: tl.constexpr,
    choice_block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, block)
    inside = expert < experts
    logit = tl.load(logits + row * experts + expert, mask=inside, other=float("-inf"))
    if sigmoid:
        score = 1.0 / (1.0 + tl.exp(-logit))
        choice = score + tl.load(bias + expert, mask=inside, other=0.0)
        excluded = float("-inf")
    else:
        score = tl.exp(logit - tl.max(logit, axis=0))
        score = score / tl.sum(score, axis=0)
        choice = score
        excluded = 0.0
    choice = tl.where(inside, choice, float("-inf"))
    if top_groups < groups:
        choice = _limit_to_groups(
            choice, expert, excluded, experts, groups, top_groups, two_best, group_block
        )
    if not sigmoid:
        score = choice
    chosen, value = _take_best(choice, score, expert, experts, top_k, block, choice_block)
    if normalize:
        value = value / (tl.sum(value, axis=0) + 1e-20)
    number = tl.arange(0, choice_block)
    tl.store(ids + row * top_k + number, chosen, mask=number < top_k)
    tl.store(weights + row * top_k + number, value * scale, mask=number < top_k)


def route(logits_NE: Tensor, bias_E: Tensor | None, rule: RouterRule) -> tuple[Tensor, Tensor]:
    """Each row's experts and their weights.

    Args:
        logits_NE: fp32, contiguous.
        bias_E: fp32; added to the scores for the choice (`sigmoid` only).
        rule: of the model.

    Returns:
        ids_NK (int64) and weights_NK (fp32), best first.
    """
    num_rows, experts = logits_NE.shape
    assert logits_NE.is_contiguous()
    ids_NK = torch.empty(num_rows, rule.top_k, dtype=torch.int64, device=logits_NE.device)
    weights_NK = torch.empty(num_rows, rule.top_k, dtype=torch.float32, device=logits_NE.device)
    if num_rows:
        _route[(num_rows,)](
            logits_NE,
            logits_NE if bias_E is None else bias_E,
            ids_NK,
            weights_NK,
            rule.scale,
            experts=experts,
            groups=rule.groups,
            top_groups=rule.top_groups,
            top_k=rule.top_k,
            sigmoid=rule.sigmoid,
            normalize=rule.normalize,
            two_best=rule.sigmoid and experts > rule.groups,
            block=triton.next_power_of_2(experts),
            group_block=triton.next_power_of_2(rule.groups),
            choice_block=triton.next_power_of_2(rule.top_k),
            num_warps=1 if experts <= 128 else 4,
        )
    return ids_NK, weights_NK
