"""Injected delays: transfers hide behind earlier layers, and what is exposed follows docs/model.md §5 (7)."""

import time
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest

from services.bench import switch
from services.bench.rig import Rig, TimedStep
from services.bench.settings import INPROCESS, SwitchSettings
from services.bench.sizing import LargestCell
from services.bench.spmd import RankHost, resolved
from splash_core.cost.switch import exposed_with_one_buffer
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.layout.layout import Layout, Matrix
from splash_core.switch.manifest import SwitchMode
from tests.support.delays import DelayComm, Span, delayed

LAYERS = 3
COMPUTE, WEIGHTS, PAGES = "ffn.gather_rows", "switch.weights", "switch.pages"
"""A rank's computation and the move of its pages, one call a layer each; its weights, one a matrix."""


@dataclass(frozen=True, kw_only=True)
class Case:
    direction: tuple[Layout, Layout]
    compute_s: float
    weights_s: float = 0.0
    pages_s: float = 0.0

    @property
    def delays(self) -> dict[str, float]:
        return {COMPUTE: self.compute_s, WEIGHTS: self.weights_s / len(Matrix), PAGES: self.pages_s}

    @property
    def layer_s(self) -> float:
        return self.weights_s + self.pages_s


# Long against what a busy machine adds: a layer really computes for some milliseconds.
CASES = {
    "weights, bound by transfers": Case(direction=(Layout.TP, Layout.DP), compute_s=0.1, weights_s=0.2),
    "pages, bound by transfers": Case(direction=(Layout.CP, Layout.DP), compute_s=0.1, pages_s=0.2),
    "pages, bound by computation": Case(direction=(Layout.DP, Layout.TP), compute_s=0.25, pages_s=0.2),
    "both, bound by computation": Case(
        direction=(Layout.DOP, Layout.CP), compute_s=0.25, weights_s=0.1, pages_s=0.1
    ),
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
        warmup=0,
    )
    resolved_settings = resolved(asked)
    assert isinstance(resolved_settings, SwitchSettings)
    return resolved_settings


def rig_of(case: Case, comms: RankComms) -> Rig:
    """A group in the case's source, with histories in place."""
    demand = LargestCell(layouts=case.direction, batch=4, tokens=40, rows=8)
    rig = Rig(RankHost(comms=comms, started=0.0), settings(case), layout=case.direction[0], demand=demand)
    rig.place(4, 32)
    return rig


def best_steps(case: Case) -> tuple[TimedStep, TimedStep]:
    """The fastest of three overlapped switching steps, and of three steps with the state in place.

    Other work on the machine only ever adds time, so the fastest step is the one that shows the delays.
    """
    source, destination = case.direction

    def program(comms: RankComms) -> tuple[TimedStep, TimedStep]:
        slow, _, _ = delayed(comms, case.delays)
        rig, switching, ready = rig_of(case, slow), [], []
        for _ in range(3):
            rig.go(source)
            rows = rig.even_rows(8)
            switching.append(rig.timed(rig.group.switch(destination, SwitchMode.OVERLAPPED, rows)))
            rig.group.rewind()
            ready.append(rig.timed(rig.group.step(rows)))
            rig.group.rewind()
        return min(switching, key=lambda step: step.total), min(ready, key=lambda step: step.total)

    return run_ranks(2, program)[0]


def running_ahead(moves: list[float], computes: list[float]) -> float:
    """What is exposed where moves wait for each other only: max over k of Σ_{i ≤ k} τ_i − Σ_{i < k} c_i."""
    done, computed = accumulate(moves), accumulate(computes, initial=0.0)
    return max(move - before for move, before in zip(done, computed, strict=False))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exposed_time_follows_the_formula(case: Case) -> None:
    switching, ready = best_steps(case)
    moves_ms, computes_ms = [1e3 * case.layer_s] * LAYERS, [1e3 * case.compute_s] * LAYERS
    expected = exposed_with_one_buffer(moves_ms, computes_ms)
    assert expected == pytest.approx(running_ahead(moves_ms, computes_ms)), "layers are alike"
    assert switching.total - ready.total == pytest.approx(expected, rel=0.2)
    # The benchmark sees where the step waited: before layer 0, and before the later ones.
    first = switching.start + switching.waits[0]
    assert first == pytest.approx(moves_ms[0], rel=0.2)
    assert first + sum(switching.waits[1:]) == pytest.approx(expected, rel=0.2)


def test_rows_tell_what_the_formula_says() -> None:
    case = CASES["weights, bound by transfers"]

    def program(comms: RankComms) -> dict[str, Any]:
        slow, _, _ = delayed(comms, case.delays)
        return switch.run(RankHost(comms=slow, started=time.monotonic()), settings(case))

    rows = {row["mode"]: row for row in run_ranks(2, program)[0]["rows"]}
    tau, c = 1e3 * case.layer_s, 1e3 * case.compute_s
    assert rows["overlapped"]["layer_ms"] == pytest.approx(tau, rel=0.3)
    assert rows["overlapped"]["formula_ms"] == pytest.approx(tau + (LAYERS - 1) * (tau - c), rel=0.3)
    assert rows["overlapped"]["exposed_ms_p50"] < rows["blocking"]["exposed_ms_p50"]


def spans_of_a_switch(case: Case, mode: SwitchMode) -> tuple[list[Span], list[Span]]:
    """What rank 0 computed and moved in one switching step."""

    def program(comms: RankComms) -> tuple[DelayComm, DelayComm]:
        slow, compute, transfer = delayed(comms, case.delays)
        rig = rig_of(case, slow)
        rig.timed(rig.group.switch(case.direction[1], mode, rig.even_rows(8)))
        return compute, transfer

    compute, transfer = run_ranks(2, program)[0]
    calls = len(transfer.spans) // LAYERS
    moved = [transfer.spans[layer * calls : (layer + 1) * calls] for layer in range(LAYERS)]
    return compute.spans, [Span(spans[0].tag, spans[0].begin, spans[-1].end) for spans in moved]


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
