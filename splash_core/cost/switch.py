"""What a switch costs: bytes per rank and layer from the rules, exposed time by equation (7).

Equations are those of docs/model.md.

Estimates for the policy, from token counts alone; the planner's manifest has the exact pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from splash_core.cost.precision import Precision
from splash_core.cost.profile import HardwareProfile
from splash_core.layout.layout import KvHistory, LayoutRule, Matrix, Projection
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import Primitive, SwitchMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBytes:
    """Received by the fullest rank, per layer."""

    weights: int
    kv: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCost:
    """Predicted cost of one switch."""

    bytes_per_rank: int
    """Received by the fullest rank, all layers."""
    exposed_s: float
    """By how much the switching step is longer than a step with the state in place."""
    contention_s: float
    """Slow-down of computation by transfers that hide behind it, and of handoffs under way."""
    delayed_s: float = 0.0
    """Of the contention: for handoffs under way, which share the link with the switch."""
    slowed_s: float = 0.0
    """Of the contention: of the switching step itself."""
    ahead_steps: int = 0
    """Ordinary steps that copy ahead before the switching step."""

    @property
    def total_s(self) -> float:
        """What a gain has to exceed."""
        return self.exposed_s + self.contention_s

    @property
    def stall_s(self) -> float:
        """By how much the switching step is longer: what all that run wait for."""
        return self.exposed_s + self.slowed_s


def kv_primitive(rule_from: LayoutRule, rule_to: LayoutRule) -> Primitive:
    """What supplies the histories: equation (3) over the rules' placements."""
    if rule_from.history is rule_to.history:
        return Primitive.KEEP
    if rule_from.history is KvHistory.ALL:
        return Primitive.DISCARD
    if rule_to.history is KvHistory.ALL:
        return Primitive.ALL_GATHER
    return Primitive.ALL_TO_ALL


def switch_bytes(
    spec: ModelSpec,
    precision: Precision,
    rule_from: LayoutRule,
    rule_to: LayoutRule,
    *,
    owner_tokens: Sequence[int],
) -> SwitchBytes:
    """Bytes that the fullest rank lacks, per layer.

    Args:
        spec: the model.
        precision: stored types.
        rule_from: the present layout.
        rule_to: the layout wanted.
        owner_tokens: cached tokens of each rank's own requests, `[T]`.
    """
    ranks = len(owner_tokens)
    weights = sum(
        precision.matrix_bytes(spec, matrix) * (ranks - 1) // ranks
        for matrix in Matrix
        if _gathers(rule_from, rule_to, matrix)
    )
    missing = missing_tokens(rule_from, rule_to, owner_tokens=owner_tokens)
    row = precision.kv_token_bytes(spec) / spec.num_mla_layers
    return SwitchBytes(weights=weights, kv=round(missing * row))


def missing_tokens(rule_from: LayoutRule, rule_to: LayoutRule, *, owner_tokens: Sequence[int]) -> float:
    """Tokens of KV that the fullest rank lacks, equation (3); arguments as for `switch_bytes`."""
    ranks, total = len(owner_tokens), sum(owner_tokens)
    match kv_primitive(rule_from, rule_to):
        case Primitive.ALL_GATHER:
            held = min(owner_tokens) if rule_from.history is KvHistory.OWNER else total / ranks
            return total - held
        case Primitive.ALL_TO_ALL if rule_to.history is KvHistory.STRIPED:
            return (total - min(owner_tokens)) / ranks
        case Primitive.ALL_TO_ALL:
            return max(owner_tokens) * (ranks - 1) / ranks
        case _:
            return 0.0


def switch_cost(
    profile: HardwareProfile,
    moved: SwitchBytes,
    *,
    layers: int,
    step_s: float,
    mode: SwitchMode = SwitchMode.OVERLAPPED,
    pending_bytes: int = 0,
) -> SwitchCost:
    """Exposed and contention time of a switch, nothing of it copied ahead: equation (7), one staging buffer.

    Args:
        profile: θ.
        moved: bytes per layer on the fullest rank.
        layers: layers that hold state.
        step_s: predicted time of the switching step in the destination layout.
        mode: how the manifest is executed; for `precopied` see `cost.precopy`.
        pending_bytes: bytes of handoffs under way on a rank's link, if they share it with switches.
    """
    transfer = sum(
        profile.collective_latency_s + size / profile.link_bps for size in (moved.weights, moved.kv) if size
    )
    total = layers * (moved.weights + moved.kv)
    delayed = (pending_bytes / profile.link_bps) if transfer else 0.0
    if mode is SwitchMode.BLOCKING:
        return SwitchCost(
            bytes_per_rank=total, exposed_s=layers * transfer, contention_s=delayed, delayed_s=delayed
        )
    compute = step_s / layers
    exposed = exposed_with_one_buffer([transfer] * layers, [compute] * layers)
    slowed = (layers - 1) * min(transfer, compute) * profile.interference
    return SwitchCost(
        bytes_per_rank=total,
        exposed_s=exposed,
        contention_s=slowed + delayed,
        delayed_s=delayed,
        slowed_s=slowed,
    )


def exposed_with_one_buffer(moves: Sequence[float], computes: Sequence[float]) -> float:
    """(7): by how much a step is longer if layer i's state moves while layer i - 1 computes, and not before.

    Args:
        moves: τ_i, time to move each layer's state.
        computes: c_i, time to compute each layer; at least one fewer than `moves`, in the same unit.
    """
    late = (move - compute for move, compute in zip(moves[1:], computes, strict=False))
    return sum(moves[:1]) + sum(max(0.0, excess) for excess in late)


def _gathers(rule_from: LayoutRule, rule_to: LayoutRule, matrix: Matrix) -> bool:
    return (
        rule_from.projections[matrix] is Projection.SHARDED
        and rule_to.projections[matrix] is Projection.REPLICATED
    )
