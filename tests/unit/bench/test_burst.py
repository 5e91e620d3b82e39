"""Bursts and arms as they are asked for, and what follows from their times."""

import pytest

from services.bench.burst_rows import Burst, arms_of, bursts_of, concluded
from services.bench.burst_tables import burst_tables
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase


def row(arm: str, run: int, seconds: float, *, batch: int = 2) -> dict[str, object]:
    return {
        "what": "burst",
        "arm": arm,
        "run": run,
        "batch": batch,
        "input": 8,
        "output": 2,
        "seconds": seconds,
        "tokens_per_s": batch * 10 / seconds,
        "ttft_s_last": seconds / 2,
        "resident": {"prefill": 1},
        "executed": 0,
        "differing": 0,
    }


def test_bursts_are_requests_prompts_and_outputs() -> None:
    assert bursts_of("16:4K:128, 1:8:2") == (Burst(16, 4096, 128), Burst(1, 8, 2))
    assert Burst(16, 4096, 128).tokens == 16 * (4096 + 128)


@pytest.mark.parametrize("text", ["", "16:4K", "16:4K:0", "a:1:1", "1:2:3:4"])
def test_a_malformed_burst_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--bursts"):
        bursts_of(text)


def test_arms_are_pairs_of_layouts_or_the_policy() -> None:
    mixed, uniform, policy = arms_of("TP/DP,cp/cp,policy")
    assert mixed.layouts == {Phase.PREFILL: Layout.TP, Phase.DECODE: Layout.DP}
    assert (str(mixed), str(uniform), str(policy)) == ("TP/DP", "CP/CP", "policy")
    assert policy.layouts == {}


@pytest.mark.parametrize("text", ["", "TP", "TP/XX", "TP/DP/CP"])
def test_a_malformed_arm_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--arms"):
        arms_of(text)


def test_the_policy_is_compared_with_the_best_of_one_layout_in_both_phases() -> None:
    spans = {"TP/TP": (4.0, 6.0), "DP/DP": (8.0, 8.0), "TP/DP": (1.0, 1.0), "policy": (2.0, 3.0)}
    rows = [
        row(arm, run, seconds / 2, batch=batch)
        for arm, times in spans.items()
        for run, seconds in enumerate(times)
        for batch in (1, 2)
    ]
    told = concluded(rows)
    assert told is not None
    assert (told["best"], told["runs"], told["best_speedup"]) == ("TP/TP", 2, 2.0)
    assert told["best_speedup_at_least"] == 2.0, "each run has the same ratio"
    assert told["dp_speedup"] == pytest.approx((4 * 8 / 3) ** 0.5, abs=1e-4)
    assert told["dp_speedup_at_least"] < told["dp_speedup"]
    page = burst_tables([*rows, told])
    assert "| TP/TP | 4.00, 6.00 |" in page
    assert "over TP/TP, the best layout in both phases: 2.000 ×, at least 2.000 ×" in page


def test_without_the_policy_or_a_layout_to_compare_with_there_is_nothing_to_say() -> None:
    assert concluded([row("TP/TP", 0, 1.0)]) is None
    assert concluded([row("TP/DP", 0, 1.0), row("policy", 0, 1.0)]) is None


def test_one_run_has_no_bound() -> None:
    told = concluded([row("DP/DP", 0, 3.0), row("policy", 0, 2.0)])
    assert told is not None
    assert told["dp_speedup"] == 1.5
    assert told["dp_speedup_at_least"] is None
