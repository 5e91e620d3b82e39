"""How alike two ways of computing the same logits are: figures of one comparison, and of one distribution.

Logits are taken a few rows at a time, so that what is compared may be larger than the device's memory.

Legend: N positions, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Two computations of the same N positions."""

    same_N: Tensor
    """Whether both name the same most probable token, bool."""
    divergence_N: Tensor
    """KL(a ‖ b) in nats."""
    margin_N: Tensor
    """How far a's best logit is above its second."""

    @property
    def agreement(self) -> float:
        """Part of the positions with the same most probable token."""
        return float(self.same_N.double().mean())

    @property
    def agreement_error(self) -> float:
        """Standard error of `agreement`, if positions are independent."""
        share = self.agreement
        return (share * (1.0 - share) / len(self.same_N)) ** 0.5

    @property
    def divergence(self) -> float:
        """Mean KL divergence, nats."""
        return float(self.divergence_N.mean())

    @property
    def widest_margin_crossed(self) -> float:
        """The largest margin of a at a position where b names another token; 0 where none differs."""
        crossed = self.margin_N[~self.same_N]
        return float(crossed.max()) if len(crossed) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the logits of one computation look like."""

    margin_N: Tensor
    entropy_N: Tensor
    """Nats."""
    deviation: float
    """Standard deviation of the logits over the vocabulary, mean over positions."""

    def margin(self, fraction: float) -> float:
        """The margin below which `fraction` of the positions lie."""
        return float(self.margin_N.quantile(fraction))

    @property
    def ties(self) -> float:
        """Part of the positions whose two best logits are equal."""
        return float((self.margin_N == 0).double().mean())

    @property
    def entropy(self) -> float:
        """Median entropy of the next token, nats."""
        return float(self.entropy_N.median())


def likeness(a_NV: Tensor, b_NV: Tensor, *, head_scale: float, device: torch.device) -> Likeness:
    """Compare two computations.

    Args:
        a_NV: logits of one, in any type and place.
        b_NV: logits of the other.
        head_scale: what both are multiplied with before they are compared.
        device: where to compute.
    """
    same: list[Tensor] = []
    divergence: list[Tensor] = []
    margins: list[Tensor] = []
    for a_RV, b_RV in zip(_parts(a_NV, head_scale, device), _parts(b_NV, head_scale, device), strict=True):
        log_p_RV, log_q_RV = a_RV.log_softmax(-1), b_RV.log_softmax(-1)
        divergence.append((log_p_RV.exp() * (log_p_RV - log_q_RV)).sum(-1).double().cpu())
        same.append((a_RV.argmax(-1) == b_RV.argmax(-1)).cpu())
        margins.append(_margin(a_RV).cpu())
    return Likeness(same_N=torch.cat(same), divergence_N=torch.cat(divergence), margin_N=torch.cat(margins))


def spread(a_NV: Tensor, *, head_scale: float, device: torch.device) -> Spread:
    """Describe one computation; arguments as those of `likeness`."""
    margins: list[Tensor] = []
    entropies: list[Tensor] = []
    deviations: list[Tensor] = []
    for a_RV in _parts(a_NV, head_scale, device):
        log_p_RV = a_RV.log_softmax(-1)
        margins.append(_margin(a_RV).cpu())
        entropies.append(-(log_p_RV.exp() * log_p_RV).sum(-1).double().cpu())
        deviations.append(a_RV.std(-1).double().cpu())
    return Spread(
        margin_N=torch.cat(margins),
        entropy_N=torch.cat(entropies),
        deviation=float(torch.cat(deviations).mean()),
    )


def _parts(a_NV: Tensor, head_scale: float, device: torch.device) -> Iterator[Tensor]:
    for a_RV in a_NV.split(_ROWS_AT_ONCE):
        yield a_RV.to(device).float() * head_scale


def _margin(a_RV: Tensor) -> Tensor:
    best_R2 = a_RV.topk(2, dim=-1).values
    return (best_R2[:, 0] - best_R2[:, 1]).double()
