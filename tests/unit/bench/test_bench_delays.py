"""Injected delays: transfers hide behind earlier layers, and what is exposed follows docs/model.md §5 (7)."""

import time
from dataclasses import dataclass
from typing import Any

import pytest

from services.bench import switch
from services.bench.rig import Rig
from services.bench.settings import INPROCESS, SwitchSettings
from services.bench.sizing import Demand
from services.bench.spmd import RankHost, resolved
from splash_core.cost.switch import exposed_running_ahead, exposed_with_one_buffer
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode
from tests.support.delays import DelayComm, Span, delayed

LAYERS = 4
COMPUTE, WEIGHTS, PAGES = "ffn.gather_rows", "switch.weights", "switch.pages"
"""One call a layer each: a rank's computation, the gather of its weights, the move of its pages."""


@dataclass(frozen=True, kw_only=True)
class Case:
    direction: tuple[Layout, Layout]
    compute_s: float
    weights_s: float = 0.0
    pages_s: float = 0.0

    @property
    def delays(self) -> dict[str, float]:
        return {COMPUTE: self.compute_s, WEIGHTS: self.weights_s, PAGES: self.pages_s}

    @property
    def layer_s(self) -> float:
        return self.weights_s + self.pages_s


CASES = {
    "weights, bound by transfers": Case(direction=(Layout.TP, Layout.DP), compute_s=0.05, weights_s=0.09),
    "pages, bound by computation": Case(direction=(Layout.DP, Layout.TP), compute_s=0.12, pages_s=0.08),
    "both, bound by computation": Case(
        direction=(Layout.DOP, Layout.CP), compute_s=0.12, weights_s=0.04, pages_s=0.05
    ),
    "pages, bound by transfers": Case(direction=(Layout.CP, Layout.DP), compute_s=0.04, pages_s=0.07),
}


def settings(case: Case) -> SwitchSettings:
    asked = SwitchSettings(
        device="cpu",
        model="tiny",
        ranks=2,
        backend=INPROCESS,
        layers=LAYERS,
        batch="4",
        context="32",
        chunk="8",
        directions=":".join(case.direction),
        reps=3,
        warmup=1,
    )
    resolved_settings = resolved(asked)
    assert isinstance(resolved_settings, SwitchSettings)
    return resolved_settings


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exposed_time_follows_the_formula(case: Case) -> None:
    def program(comms: RankComms) -> dict[str, Any]:
        slow, _, _ = delayed(comms, case.delays)
        return switch.run(RankHost(comms=slow, started=time.monotonic()), settings(case))

    document = run_ranks(2, program)[0]
    rows = {row["mode"]: row for row in document["rows"]}
    computes_ms = [1e3 * case.compute_s] * LAYERS
    moves_ms = [1e3 * case.layer_s] * LAYERS
    expected = exposed_with_one_buffer(moves_ms, computes_ms)
    assert expected == pytest.approx(exposed_running_ahead(moves_ms, computes_ms))
    assert rows["overlapped"]["exposed_ms_p50"] == pytest.approx(expected, rel=0.2)
    assert rows["blocking"]["exposed_ms_p50"] == pytest.approx(sum(moves_ms), rel=0.2)
    # The bench predicts it from what it measures itself, and says where the waiting was.
    assert rows["overlapped"]["layer_ms"] == pytest.approx(moves_ms[0], rel=0.2)
    assert rows["overlapped"]["formula_ms"] == pytest.approx(expected, rel=0.2)
    assert rows["overlapped"]["first_wait_ms_p50"] == pytest.approx(moves_ms[0], rel=0.2)
    waits = rows["overlapped"]["first_wait_ms_p50"] + rows["overlapped"]["later_waits_ms_p50"]
    assert waits == pytest.approx(expected, rel=0.2)


def spans_of_a_switch(case: Case, mode: SwitchMode) -> tuple[list[Span], list[Span]]:
    """What rank 0 computed and moved in one switching step."""
    source, destination = case.direction

    def program(comms: RankComms) -> tuple[DelayComm, DelayComm]:
        slow, compute, transfer = delayed(comms, case.delays)
        demand = Demand(layouts=case.direction, batch=4, tokens=40, rows=8)
        rig = Rig(RankHost(comms=slow, started=0.0), settings(case), layout=source, demand=demand)
        rig.place(4, 32)
        rig.timed(rig.group.switch(destination, mode, rig.even_rows(8)))
        return compute, transfer

    compute, transfer = run_ranks(2, program)[0]
    return compute.spans, transfer.spans


@pytest.mark.parametrize("name", ["weights, bound by transfers", "pages, bound by computation"])
def test_a_layer_moves_while_the_layer_before_computes(name: str) -> None:
    computed, moved = spans_of_a_switch(CASES[name], SwitchMode.OVERLAPPED)
    assert len(computed) == len(moved) == LAYERS
    for layer in range(1, LAYERS):
        before = computed[layer - 1]
        shared = min(before.end, moved[layer].end) - max(before.begin, moved[layer].begin)
        assert shared > 0.01 or moved[layer].end <= before.begin, f"layer {layer} does not overlap"
        # It is in place before the layer computes.
        assert moved[layer].end <= computed[layer].begin + 1e-3


def test_a_blocking_switch_moves_everything_first() -> None:
    computed, moved = spans_of_a_switch(CASES["weights, bound by transfers"], SwitchMode.BLOCKING)
    assert len(computed) == len(moved) == LAYERS
    assert moved[-1].end <= computed[0].begin + 1e-3
