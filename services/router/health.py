"""Is the deployment alive, is it ready, and its numbers of the moment."""

from collections.abc import Iterable, Sequence

from services.router.dispatch import Dispatcher
from services.router.metrics import TRAFFIC, Sample
from services.router.records import GroupRecord
from services.router.registry import Registry


def alive_causes(records: Sequence[GroupRecord], *, now_s: float, limit_s: float) -> list[str]:
    """Why the deployment is not alive: groups that have failed, are silent, or make no steps."""
    stalled = [(record.label, record.stalled(now_s=now_s, limit_s=limit_s)) for record in records]
    return [f"{label} {cause}" for label, cause in stalled if cause is not None]


def ready_causes(registry: Registry, dispatcher: Dispatcher) -> list[str]:
    """Why new requests should go elsewhere."""
    if dispatcher.leaving or dispatcher.draining:
        return ["the router is draining"]
    return registry.causes()


def gauges(registry: Registry, dispatcher: Dispatcher) -> Iterable[Sample]:
    """Values of the moment for `/metrics`."""
    waiting = dispatcher.waiting
    yield "splash_running_sequences", (), dispatcher.running
    yield "splash_queued_sequences", (), waiting.requests
    yield "splash_queued_prompt_tokens", (), waiting.prompt_tokens
    for record in registry.records():
        state = record.state
        if state is None:
            continue
        labels = (("group", record.label), ("phase", record.phase))
        yield "splash_group_running", labels, state.running
        yield "splash_group_waiting", labels, state.waiting
        yield "splash_group_kv_tokens_used", labels, state.kv_tokens_used
        yield "splash_group_kv_tokens_total", labels, state.kv_tokens_total
        yield "splash_group_steps_total", labels, state.steps
        yield "splash_group_layout_epoch", (*labels, ("layout", state.layout)), state.layout_epoch
        for seen in state.forecasts:
            of = (*labels, ("layout", seen.layout))
            yield "splash_step_compared_total", of, seen.steps
            yield "splash_step_predicted_seconds_total", of, seen.predicted_s
            yield "splash_step_measured_seconds_total", of, seen.measured_s
            yield "splash_step_measured_ratio", of, seen.ratio
            yield "splash_step_drift", of, seen.drifting
        yield "splash_group_policy_version", labels, state.policy.version
        # A leader of another version may tell of more.
        for sample in (sample for sample in state.traffic if sample.name in TRAFFIC):
            of = (*labels, ("class", sample.traffic), ("peer", sample.peer))
            yield f"splash_traffic_{sample.name}", of, sample.value
