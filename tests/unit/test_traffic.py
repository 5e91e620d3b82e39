"""Counts of traffic: per class and peer, summed over ranks, shown as metrics."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.router.health import gauges
from services.router.metrics import Metrics
from splash_core.ids import RankId, StepId
from splash_core.leader.traffic import GroupTraffic
from splash_core.pb import common_pb2, control_pb2
from splash_core.rpc.traffic import samples_from_pb, samples_to_pb
from splash_core.scheduling.step import StepResult
from splash_core.transport.classes import TrafficClass
from splash_core.transport.counters import TrafficCount, TrafficCounters, TrafficSample, summed


def value(
    samples: tuple[TrafficSample, ...], count: TrafficCount, peer: str, traffic: str = "handoff"
) -> float:
    (found,) = [s.value for s in samples if (s.count, s.peer, s.traffic) == (count, peer, traffic)]
    return found


def test_operations_are_counted_from_their_beginning_to_their_end() -> None:
    counters = TrafficCounters()
    counters.began(TrafficClass.HANDOFF, "decode-0/1")
    counters.began(TrafficClass.HANDOFF, "decode-0/1")
    counters.began(TrafficClass.HANDOFF, "decode-1/0")
    assert value(counters.samples(), TrafficCount.IN_FLIGHT, "decode-0/1") == 2
    counters.ended(TrafficClass.HANDOFF, "decode-0/1", num_bytes=7, failed=False, held_s=0.5, moving_s=0.25)
    counters.ended(TrafficClass.HANDOFF, "decode-0/1", num_bytes=2, failed=True)
    samples = counters.samples()
    assert value(samples, TrafficCount.IN_FLIGHT, "decode-0/1") == 0
    assert value(samples, TrafficCount.IN_FLIGHT, "decode-1/0") == 1
    assert value(samples, TrafficCount.BYTES, "decode-0/1") == 9
    assert value(samples, TrafficCount.OPERATIONS, "decode-0/1") == 2
    assert value(samples, TrafficCount.FAILURES, "decode-0/1") == 1
    assert value(samples, TrafficCount.HELD_SECONDS, "decode-0/1") == 0.5
    assert value(samples, TrafficCount.MOVING_SECONDS, "decode-0/1") == 0.25


def test_a_group_sums_its_ranks_newest_counts_and_its_steps() -> None:
    traffic = GroupTraffic()
    traffic.rank_told(RankId(0), (TrafficSample(TrafficCount.BYTES, "handoff", "d/0", 5.0),))
    traffic.rank_told(RankId(0), (TrafficSample(TrafficCount.BYTES, "handoff", "d/0", 8.0),))
    traffic.rank_told(RankId(1), (TrafficSample(TrafficCount.BYTES, "handoff", "d/0", 1.0),))
    for step in (1, 2):
        results = [
            StepResult(step=StepId(step), rank=RankId(r), switch_bytes_received=10 * step) for r in (0, 1)
        ]
        traffic.step_ended(results)
    traffic.step_ended([StepResult(step=StepId(3), rank=RankId(0), precopy_bytes_received=4)])
    samples = traffic.samples()
    assert value(samples, TrafficCount.BYTES, "d/0") == 9
    assert value(samples, TrafficCount.BYTES, "", "switch") == 60
    assert value(samples, TrafficCount.OPERATIONS, "", "switch") == 2
    assert value(samples, TrafficCount.BYTES, "", "precopy") == 4


def test_samples_cross_the_wire_and_unknown_ones_are_errors() -> None:
    samples = tuple(TrafficSample(count, "handoff", "d/0", 1.5) for count in TrafficCount)
    assert samples_from_pb(samples_to_pb(samples)) == samples
    assert summed([samples, samples]) == tuple(
        sorted(TrafficSample(count, "handoff", "d/0", 3.0) for count in TrafficCount)
    )
    with pytest.raises(ValueError, match="miles"):
        samples_from_pb([common_pb2.TrafficSample(name="miles")])


def test_every_count_is_a_metric_of_the_router() -> None:
    samples = [TrafficSample(count, "handoff", "d/0", 2.0) for count in TrafficCount]
    state = control_pb2.GroupState(layout="TP", traffic=samples_to_pb(samples))
    record = SimpleNamespace(state=state, label="p", phase="prefill")
    registry = SimpleNamespace(records=lambda: [record])
    dispatcher = SimpleNamespace(waiting=SimpleNamespace(requests=0, prompt_tokens=0), running=0)
    page = Metrics().render(gauges(cast("Any", registry), cast("Any", dispatcher)))
    labels = 'group="p",phase="prefill",class="handoff",peer="d/0"'
    for count in TrafficCount:
        assert f"splash_traffic_{count.value}{{{labels}}} 2" in page.splitlines()
        assert f"# HELP splash_traffic_{count.value} " in page


def test_predicted_and_measured_steps_are_metrics_by_layout() -> None:
    seen = control_pb2.LayoutForecast(
        layout="TP", steps=3, predicted_s=0.5, measured_s=2.0, ratio=4.0, drifting=True
    )
    record = SimpleNamespace(
        state=control_pb2.GroupState(layout="TP", forecasts=[seen]), label="d", phase="decode"
    )
    registry = SimpleNamespace(records=lambda: [record])
    dispatcher = SimpleNamespace(waiting=SimpleNamespace(requests=0, prompt_tokens=0), running=0)
    lines = Metrics().render(gauges(cast("Any", registry), cast("Any", dispatcher))).splitlines()
    labels = '{group="d",phase="decode",layout="TP"}'
    assert f"splash_step_compared_total{labels} 3" in lines
    assert f"splash_step_predicted_seconds_total{labels} 0.5" in lines
    assert f"splash_step_measured_seconds_total{labels} 2" in lines
    assert f"splash_step_measured_ratio{labels} 4" in lines
    assert f"splash_step_drift{labels} 1" in lines
