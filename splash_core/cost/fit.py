"""θ from measurements: single operations say where each constant begins, whole steps adjust all of them.

    minimise over log θ:  Σ w · huber(log(predicted / measured)) + Σ (log θ − log θ₀)² / s²

over steps that are not held out (every phase and layout weighs the same) and single operations. θ₀ comes from
the operations alone. Relative errors, medians of repetitions and the Huber loss resist outliers; logarithms
keep θ positive; the prior keeps what nothing measures where it was. Deterministic.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from splash_core.cost.constants import APART, OVERHEADS, LinkName, Name, names_of, value_of, with_values
from splash_core.cost.least_squares import Problem, Vector, solve
from splash_core.cost.links import Collective, LinkRate, message_s
from splash_core.cost.model import CostModel
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.samples import Attend, Operation, Outside, Product, Sent, StepSample
from splash_core.errors import ConfigError
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import RULES

_WIDTH = 0.1
"""Huber: relative errors beyond it count linearly."""
_STEPS_WEIGHT, _OPERATIONS_WEIGHT = 10_000.0, 1_000.0
"""Of all residuals of a kind together, next to the prior."""
_RATE_DEVIATION, _OVERHEAD_DEVIATION = 0.7, 3.0
"""Prior: a rate within a factor of two, an overhead within some twenty."""
_LEAST_UNIT_S = 1e-6
_FIRST_APART = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a fit is given."""

    steps: Sequence[StepSample]
    """Held-out ones too; they are not used."""
    operations: Sequence[Operation]


def fit(model: CostModel, measured: Measured, *, small_bytes: float = 0.0) -> HardwareProfile:
    """The profile that explains the measurements best.

    Args:
        model: of the group that was measured; its profile is what is assumed before.
        measured: steps and operations.
        small_bytes: collectives up to this size have rates of their own; 0: none have.

    Raises:
        ConfigError: no step, or no operation, is left to fit; says what to raise.
    """
    steps = [sample for sample in measured.steps if not sample.held_out]
    if not steps:
        raise ConfigError(
            "no step was measured, undisturbed, that may enter the fit; raise --budget-s, or let less run on "
            "the host beside it"
        )
    if not measured.operations:
        raise ConfigError(
            "no operation was measured alone, and steps do not tell rates from overheads; raise --budget-s"
        )
    model = replace(model, profile=first_guess(model, measured.operations, small_bytes=small_bytes))
    names = tuple(name for name in names_of(model.profile) if _matters(name, model))
    means = [math.log(value_of(model.profile, name)) for name in names]
    per_group = Counter((sample.phase, sample.layout) for sample in steps)
    weights = [_STEPS_WEIGHT / len(per_group) / per_group[sample.phase, sample.layout] for sample in steps]
    weights += [_OPERATIONS_WEIGHT / len(measured.operations)] * len(measured.operations)

    def residuals(logs: Vector) -> Vector:
        tried = replace(model, profile=_with_logs(model.profile, names, logs))
        return [
            *(math.log(predicted_s(tried, sample) / sample.seconds) for sample in steps),
            *(math.log(operation_s(tried, one) / one.seconds) for one in measured.operations),
        ]

    found = solve(
        Problem(
            residuals=residuals,
            weights=weights,
            means=means,
            deviations=[_deviation(name) for name in names],
            width=_WIDTH,
        )
    )
    return _finished(_with_logs(model.profile, names, found), model)


def predicted_s(model: CostModel, sample: StepSample) -> float:
    """A step as it ran: in the form and with the storage that its plan named."""
    prediction = model.predict_as(
        RULES[sample.layout],
        sample.load,
        form=sample.form,
        storage=sample.storage,
        kind=sample.kind,
    )
    return prediction.step_s


def operation_s(model: CostModel, operation: Operation) -> float:
    """A single operation."""
    profile = model.profile
    match operation:
        case Product():
            compute, read = operation.flops / profile.flops, operation.read_bytes / profile.weight_read_bps
            return profile.roofline(compute, read)
        case Attend():
            alone = model.attend_s(operation.work, operation.form, heads=model.spec.heads)
            return alone + operation.work.runs * profile.run_s
        case Sent():
            return message_s(profile.rates(operation.message.kind), operation.message)
        case Outside():
            return model.outside_layers_s(RULES[operation.layout], operation.load)


def first_guess(
    model: CostModel, operations: Sequence[Operation], *, small_bytes: float = 0.0
) -> HardwareProfile:
    """θ₀: the best rate that single operations of each kind reached, and some overheads."""
    profile = model.profile
    products = [one for one in operations if isinstance(one, Product)]
    if products:
        flops = max(one.flops / one.seconds for one in products)
        read = max(one.read_bytes / one.seconds for one in products)
        profile = replace(profile, flops=flops, expert_flops=flops, weight_read_bps=read)
    chunks = [one for one in operations if isinstance(one, Attend) and one.work.runs]
    for form, name in _ATTENTION.items():
        rates = [_flops(model, one) / one.seconds for one in chunks if one.form is form]
        if rates:
            profile = with_values(profile, {name: max(rates)})
    sent = [one for one in operations if isinstance(one, Sent)]
    links = {kind.value: _link_rates(sent, kind, small_bytes) for kind in Collective}
    profile = replace(profile, collectives={kind: rates for kind, rates in links.items() if rates})
    unit = max(profile.layer_overhead_s, _LEAST_UNIT_S)
    first = {name: overhead.first * unit for name, overhead in OVERHEADS.items()}
    return with_values(profile, {**first, APART: _FIRST_APART})


_ATTENTION = {AttentionForm.ABSORBED: "attention_flops", AttentionForm.EXPANDED: "expanded_flops"}


def _flops(model: CostModel, one: Attend) -> float:
    spec = model.spec
    absorbed = one.form is AttentionForm.ABSORBED
    per_pair = spec.kv_row + spec.kv_lora_rank if absorbed else spec.qk_dim + spec.v_dim
    return 2 * one.work.pairs * spec.heads * per_pair


def _link_rates(sent: Sequence[Sent], kind: Collective, small_bytes: float) -> tuple[LinkRate, ...]:
    mine = [one for one in sent if one.message.kind is kind]
    small = [one for one in mine if one.message.received_bytes <= small_bytes]
    large = [one for one in mine if one.message.received_bytes > small_bytes]
    parts = [(small, small_bytes), (large, 0.0)]
    return tuple(_link_rate(part, most) for part, most in parts if part)


def _link_rate(sent: Sequence[Sent], most_bytes: float) -> LinkRate:
    latency = min(one.seconds for one in sent)
    largest = max(sent, key=lambda one: one.message.received_bytes)
    beyond = max(largest.seconds - latency, largest.seconds / len(sent))
    return LinkRate(
        latency_s=latency, bps=max(largest.message.received_bytes, 1.0) / beyond, most_bytes=most_bytes
    )


def _matters(name: Name, model: CostModel) -> bool:
    """False for what no step of this model tells."""
    return name != "expert_flops" or model.spec.is_moe(model.spec.layers - 1)


def _deviation(name: Name) -> float:
    if isinstance(name, LinkName):
        return _RATE_DEVIATION
    return _OVERHEAD_DEVIATION if name in OVERHEADS or name == APART else _RATE_DEVIATION


def _with_logs(profile: HardwareProfile, names: Sequence[Name], logs: Sequence[float]) -> HardwareProfile:
    pairs = zip(names, logs, strict=True)
    return with_values(profile, {name: math.exp(min(max(log, -60.0), 60.0)) for name, log in pairs})


def _finished(profile: HardwareProfile, model: CostModel) -> HardwareProfile:
    """What the fit does not see follows from what it saw."""
    if not model.spec.is_moe(model.spec.layers - 1):
        profile = replace(profile, expert_flops=profile.flops)
    if not profile.collectives:
        return profile
    # Switches and handoffs move state in large exchanges.
    rates = [kind[-1] for kind in profile.collectives.values()]
    return replace(
        profile,
        link_bps=statistics.median(rate.bps for rate in rates),
        collective_latency_s=statistics.median(rate.latency_s for rate in rates),
    )
