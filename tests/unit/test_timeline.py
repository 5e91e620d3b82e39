"""Stages of a request add up to its time, whatever the clocks of other processes say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.timeline import STAGES, Timeline
from splash_core.dispatch.placement import Placement
from splash_core.pb import decode_pb2, prefill_pb2

SECONDS = st.floats(0.0, 50.0)
PLACEMENT = Placement(prefill="p", decode="d", reason="", max_model_len=100)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _run(steps: tuple[float, ...], prefill: tuple[float, ...], wait_s: float, upto: int) -> dict[str, Any]:
    """A sequence that gets through `upto` of its marks, then ends."""
    clock = Clock()
    line = Timeline(request_id="r", clock=clock)
    marks = (
        lambda: line.place(PLACEMENT),
        lambda: line.mark("leased"),
        lambda: line.mark("first_token"),
        lambda: line.mark("finished"),
    )
    for step, mark in zip(steps, marks[:upto], strict=False):
        clock.now += step
        mark()
    if upto > 2:
        queue_s, prefill_s, transfer_s = prefill
        line.prefilled(prefill_pb2.PrefillResult(queue_s=queue_s, prefill_s=prefill_s, transfer_s=transfer_s))
        line.decoded(decode_pb2.DecodeFinished(wait_s=wait_s))
    clock.now += steps[-1]
    line.end()
    return line.to_json()


@given(
    st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
    st.tuples(SECONDS, SECONDS, SECONDS),
    SECONDS,
    st.integers(0, 4),
)
def test_stages_add_up_to_the_total(
    steps: tuple[float, ...], prefill: tuple[float, ...], wait_s: float, upto: int
) -> None:
    report = _run(steps, prefill, wait_s, upto)
    lengths = [report["stages"][name] for name in STAGES]
    assert all(length is None or length >= -1e-9 for length in lengths)
    assert sum(length for length in lengths if length is not None) == pytest.approx(report["total_s"])


def test_each_stage_is_what_it_says() -> None:
    report = _run((1.0, 2.0, 10.0, 8.0, 0.5), (0.5, 6.0, 1.5), 0.25, 4)
    assert report["total_s"] == pytest.approx(21.5)
    assert report["stages"] == {
        "queue_s": pytest.approx(3.5),
        "prefill_s": pytest.approx(6.0),
        "transfer_s": pytest.approx(1.5),
        "wait_s": pytest.approx(2.25),
        "decode_s": pytest.approx(8.25),
    }
    assert report["router"] == {"queue_s": pytest.approx(1.0), "lease_s": pytest.approx(2.0)}
    assert report["prefill"] == {"queue_s": 0.5, "compute_s": 6.0, "transfer_s": 1.5}
    assert report["decode"] == {"wait_s": 0.25}


def test_a_sequence_that_is_tried_again_counts_the_first_try_as_queue() -> None:
    clock = Clock()
    line = Timeline(request_id="r", clock=clock)
    line.place(PLACEMENT)
    line.mark("leased")
    line.prefilled(prefill_pb2.PrefillResult(prefill_s=3.0))
    clock.now += 5.0
    line.place(PLACEMENT)
    stages = line.to_json()["stages"]
    assert stages == dict.fromkeys(STAGES)
    clock.now += 1.0
    line.mark("leased")
    assert line.to_json()["stages"]["queue_s"] == pytest.approx(6.0)
    assert "prefill" not in line.to_json()


def test_scoring_has_no_decode() -> None:
    clock = Clock()
    line = Timeline(request_id="r", clock=clock)
    line.place(PLACEMENT)
    line.mark("leased")
    clock.now += 4.0
    line.prefilled(prefill_pb2.PrefillResult(queue_s=1.0, prefill_s=2.5))
    line.end()
    stages = line.to_json()["stages"]
    assert [stages[name] for name in STAGES] == [pytest.approx(1.0), pytest.approx(2.5), 0.0, 0.5, None]
