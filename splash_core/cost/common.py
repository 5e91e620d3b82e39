"""t_common: FFN or experts, embedding and LM head: equal in all layouts but for how rows balance."""

from splash_core.cost.exchange import Messages, gather_rows, scatter_rows
from splash_core.cost.links import Collective, CollectiveLoad
from splash_core.cost.precision import Precision
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.shares import Shares
from splash_core.spec.model import ModelSpec


def common_time(spec: ModelSpec, precision: Precision, profile: HardwareProfile, shares: Shares) -> float:
    """Seconds outside attention, over all layers and all steps of the load."""
    if shares.total.rows == 0:
        return 0.0
    dense_layers = spec.layers if spec.moe is None else spec.moe.first_dense
    time = dense_layers * _dense(spec, precision, profile, shares)
    time += (spec.layers - dense_layers) * _experts(spec, precision, profile, shares)
    time += spec.layers * profile.messages_s(_row_messages(spec, precision, shares))
    return time + ends_time(spec, precision, profile, shares)


def _row_messages(spec: ModelSpec, precision: Precision, shares: Shares) -> Messages:
    """Rows gathered before a layer's FFN, and partial sums scattered home after it."""
    if shares.num_ranks == 1:
        return ()
    width = precision.activation_bytes
    return gather_rows(shares, spec.hidden, width), scatter_rows(shares, spec.hidden, width)


def _dense(spec: ModelSpec, precision: Precision, profile: HardwareProfile, shares: Shares) -> float:
    elements = 3 * spec.hidden * spec.dense_intermediate / shares.num_ranks
    flops = 2 * shares.total.rows * elements
    weights = shares.steps * elements * precision.weight_bytes
    return profile.roofline(flops / profile.flops, weights / profile.weight_read_bps)


def _experts(spec: ModelSpec, precision: Precision, profile: HardwareProfile, shares: Shares) -> float:
    moe = spec.moe
    if moe is None:
        return 0.0
    ranks, rows = shares.num_ranks, shares.total.rows
    expert = 3 * spec.hidden * moe.intermediate
    shared = 3 * spec.hidden * moe.shared_intermediate / ranks
    held = -(-moe.num_experts // ranks)
    if rows / shares.steps <= profile.dense_expert_rows:
        # Every local expert computes every row.
        pairs, touched = rows * held, 1.0
    else:
        # Experts that at least one row of a step chooses, if choices are even.
        pairs, touched = (
            rows * moe.top_k / ranks,
            1 - (1 - moe.top_k / moe.num_experts) ** (rows / shares.steps),
        )
    flops = 2 * rows * shared + 2 * shares.home_rows * spec.hidden * moe.num_experts
    weights = (held * touched * expert + shared) * precision.weight_bytes
    weights += spec.hidden * moe.num_experts * precision.activation_bytes
    compute = 2 * pairs * expert / profile.expert_flops + flops / profile.flops
    return profile.roofline(compute, shares.steps * weights / profile.weight_read_bps)


def ends_time(spec: ModelSpec, precision: Precision, profile: HardwareProfile, shares: Shares) -> float:
    """Seconds of embedding and LM head: what comes before the first layer and after the last."""
    ranks, samples = shares.num_ranks, shares.total.samples
    elements = spec.hidden * spec.vocab / ranks
    # Steps that draw no token skip the head.
    reads = min(shares.steps, samples) * elements * precision.activation_bytes
    time = profile.roofline(2 * samples * elements / profile.flops, reads / profile.weight_read_bps)
    if ranks == 1:
        return time
    # Embedding sum, hidden rows to the vocabulary shards, logits back to homes.
    logits = samples * (1 - 1 / ranks) / ranks * spec.vocab * precision.activation_bytes
    drawing = (
        CollectiveLoad(Collective.GATHER, shares.steps, 0.0),
        CollectiveLoad(Collective.EXCHANGE, shares.steps, logits),
    )
    embedded = scatter_rows(shares, spec.hidden, precision.activation_bytes)
    return time + profile.messages_s((embedded, *drawing))
