"""What is concluded of a rollout: order of arms, tokens compared, the bound; its requests; its tables."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.bench.rollout_command import rollout
from services.bench.rollout_load import prompts_of, rollout_workload
from services.bench.rollout_rows import (
    arms_in_order,
    concluded,
    first_difference,
    simulated_row,
    upper_bound,
)
from services.bench.rollout_settings import RolloutSettings
from services.bench.rollout_simulated import fleet_of, lengths_text, workload_of
from services.bench.rollout_tables import rollout_tables
from services.bench.streams import Streamed
from splash_core.cost.profile import HardwareProfile
from splash_core.errors import ConfigError

ROOT = Path(__file__).parents[3]

ARMS = ("TP", "DP", "policy")
PROFILE = Path(__file__).parents[3] / "docs/profiles/smollm2-mla-cpu-fp32-t2.json"


def arm(name: str, run: int, makespan_s: float, **fields: Any) -> dict[str, Any]:
    return {
        "what": "arm",
        "run": run,
        "arm": name,
        "makespan_s": makespan_s,
        "tokens_per_s": 100.0 / makespan_s,
        "itl_ms_p50": 50.0,
        "itl_ms_p95": 80.0,
        "itl_ms_p99": 90.0,
        "differing": 0,
        "difference": "",
        "executed": 0,
        "switches": [],
        "cpu_s": {"client": 1.0, "router": 2.0, "decode-0 ranks": 20.0, "others": 0.5},
        **fields,
    }


SPANS = {"TP": (10.0, 11.0, 9.0), "DP": (12.0, 8.0, 11.0), "policy": (10.2, 10.8, 9.1)}


def rows_of(spans: dict[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    return [arm(name, run, span) for name, all_spans in spans.items() for run, span in enumerate(all_spans)]


class TestOrder:
    def test_each_arm_stands_once_at_every_place_and_once_in_every_run(self) -> None:
        arms = ("TP", "CP", "DP", "DOP", "policy")
        square = [arms_in_order(arms, run) for run in range(5)]
        assert all(sorted(row) == sorted(arms) for row in square)
        assert all(sorted(column) == sorted(arms) for column in zip(*square, strict=True))
        assert arms_in_order(arms, 5) == list(arms)


class TestBound:
    def test_it_is_the_one_sided_t_bound_of_the_mean_logarithm(self) -> None:
        logs = [0.01, -0.02, 0.03, 0.0, 0.02]
        deviation = math.sqrt(sum((log - 0.008) ** 2 for log in logs) / 4)
        assert upper_bound(logs) == pytest.approx(math.exp(0.008 + 2.132 * deviation / math.sqrt(5)))

    def test_equal_ratios_are_their_own_bound_and_a_single_one_has_none(self) -> None:
        assert upper_bound([math.log(1.02)] * 3) == pytest.approx(1.02)
        assert upper_bound([0.0]) is None

    def test_the_best_fixed_layout_has_the_least_mean_and_pairs_are_of_one_run(self) -> None:
        found = concluded(rows_of(SPANS))
        assert found["best"] == "TP"
        logs = [math.log(a / b) for a, b in zip(SPANS["policy"], SPANS["TP"], strict=True)]
        assert found["ratio"] == pytest.approx(math.exp(sum(logs) / 3), abs=1e-4)
        assert found["upper"] == pytest.approx(upper_bound(logs), abs=1e-4)
        assert found["met"] is True
        assert found["ratio_to_best_of_each_run"] > found["ratio"]

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_rows_may_come_in_any_order_of_runs(self, order: tuple[int, ...]) -> None:
        rows = [row for run in order for row in rows_of(SPANS) if row["run"] == run]
        assert concluded(rows) == concluded(rows_of(SPANS))

    def test_a_slower_policy_or_another_token_is_not_met(self) -> None:
        assert concluded(rows_of(SPANS | {"policy": (11.0, 11.6, 9.5)}))["met"] is False
        rows = rows_of(SPANS)
        rows[4] = rows[4] | {"differing": 1, "difference": "request 3, token 7: 'a' for 'b'"}
        found = concluded(rows)
        assert found["met"] is False
        assert found["first_difference"] == "request 3, token 7: 'a' for 'b'"


class TestTokens:
    def test_equal_answers_do_not_differ(self) -> None:
        assert first_difference([["a"], ["b", "c"]], [["a"], ["b", "c"]]) == (0, "")

    def test_the_first_difference_is_told_and_all_requests_are_counted(self) -> None:
        number, where = first_difference([["a"], ["b", "c"], ["d"]], [["a"], ["b", "x"], ["e"]])
        assert (number, where) == (2, "request 1, token 1: 'x' for 'c'")

    def test_an_answer_that_ends_early_differs(self) -> None:
        assert first_difference([["a", "b"]], [["a"]]) == (1, "request 0, token 1: nothing for 'b'")


class TestRequests:
    def test_they_follow_from_the_seed_and_have_a_long_tail(self) -> None:
        requests = rollout_workload(RolloutSettings()).requests
        assert requests == rollout_workload(RolloutSettings()).requests
        assert requests != rollout_workload(RolloutSettings(seed=1)).requests
        outputs = sorted(request.output_tokens for request in requests)
        assert len(outputs) == 64
        assert outputs[-1] > 5 * outputs[32]
        assert all(request.max_tokens == request.output_tokens for request in requests)

    def test_prompts_are_as_long_and_of_the_vocabulary(self) -> None:
        requests = rollout_workload(RolloutSettings()).requests
        for vocab in (320, 49152):
            prompts = prompts_of(requests, seed=0, vocab=vocab)
            assert [len(prompt.tokens) for prompt in prompts] == [one.prompt_tokens for one in requests]
            assert all(0 <= token < vocab for prompt in prompts for token in prompt.tokens)

    def test_what_is_simulated_is_what_was_asked(self) -> None:
        requests = rollout_workload(RolloutSettings()).requests
        again = workload_of(lengths_text(requests)).requests
        arrivals = [one.arrival_s for one in again]
        assert arrivals == sorted(set(arrivals))
        assert arrivals[0] == 0.0
        assert [replace(one, arrival_s=0.0) for one in again] == list(requests)

    def test_cores_are_shared_on_cpus_only(self, tiny_v3: Path) -> None:
        profile = HardwareProfile.from_json(PROFILE.read_text())
        settings = {"model": str(tiny_v3), "dtype": profile.dtype, "ranks": 2, "chunk_tokens": 64}
        settings |= {"max_running": 8, "kv_bytes": 1 << 20, "page_size": 4}
        assert fleet_of(settings, profile, host_cores=2).host_cores == 2
        with pytest.raises(ConfigError, match=r"profile .* is for device cpu, the group has device cuda"):
            fleet_of(settings | {"device": "cuda"}, profile, host_cores=2)
        on_gpus = replace(profile, device="cuda")
        assert fleet_of(settings | {"device": "cuda"}, on_gpus, host_cores=2).host_cores is None

    def test_gaps_lie_between_tokens(self) -> None:
        assert Streamed(tokens=["a", "b", "c"], times=[1.0, 1.5, 1.75]).gaps_s == [0.5, 0.25]


class TestTables:
    def test_it_says_what_was_found(self) -> None:
        rows = rows_of(SPANS)
        switched = {"at_s": 5.0, "phase": "decode", "from": "DP", "to": "TP", "executor": "overlapped"}
        rows[-1] = rows[-1] | {"executed": 1, "switches": [switched]}
        summary = {"makespan_s": 11.0, "itl_s": {"p50": 0.04}, "switches": 1}
        profile = {"what": "profile", "name": "θ", "source": "measured", "date": "", "note": "a note"}
        text = rollout_tables(
            [*rows, concluded(rows), profile, simulated_row("policy", summary, SPANS["policy"])]
        )
        assert "| TP | 10.00 | 10.00, 11.00, 9.00 | 1.000 |" in text
        assert "Policy against TP, the best fixed layout, over 3 runs" in text
        assert "| 3.0, 0.5 |" in text
        assert "no token differs" in text
        assert "run 3: decode DP → TP at 5.0 s (overlapped)" in text
        assert "Simulated with θ, measured, a note" in text
        assert "| policy | 11.00 | 10.03 | +9.6% | yes |" in text


def test_a_document_of_another_benchmark_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    other, profile = tmp_path / "other.json", ROOT / "docs/profiles/smollm2-mla-cpu-fp32-t2.json"
    other.write_text('{"bench": "sweep", "rows": []}')
    asked = RolloutSettings(simulate=str(other), profile=str(profile), out=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"--simulate .* is no document of `splash bench rollout`"):
        rollout(asked, True)
    assert not (tmp_path / "out").exists()
