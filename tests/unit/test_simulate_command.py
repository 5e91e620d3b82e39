"""`splash simulate`, end to end: JSON, tables, a drawn PNG, and errors that say what to do."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services import cli
from services.commands.simulate import app
from services.exit_codes import exit_code
from splash_core.cost.profile import analytical_profile
from splash_core.errors import ConfigError, Infeasible
from splash_core.spec.hardware import named_gpu

CONFIG = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "vocab_size": 1000,
    "intermediate_size": 512,
    "n_routed_experts": None,
    "max_position_embeddings": 8192,
}
TRACE = "".join(
    json.dumps({"timestamp": 40 * index, "input_length": 100 + index, "output_length": 8}) + "\n"
    for index in range(20)
)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """A small model, a profile in a file, and a trace."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    profile = analytical_profile(named_gpu("cpu"), dtype="fp32")
    (tmp_path / "theta.json").write_text(profile.to_json())
    (tmp_path / "trace.jsonl").write_text(TRACE)
    return [
        *("--model", str(tmp_path / "config.json"), "--profile", str(tmp_path / "theta.json")),
        *("--trace", str(tmp_path / "trace.jsonl"), "--gpu", "cpu", "--ranks", "2", "--page-size", "16"),
        *("--kv-bytes", "8000000", "--chunk-tokens", "256"),
    ]


def run(*args: str) -> Any:
    return CliRunner().invoke(app, list(args), catch_exceptions=True)


def test_json_has_the_shape_that_tools_rely_on(options: list[str]) -> None:
    done = run(*options, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["workload"] == "trace"
    assert set(found["fixed"]) == {"TP", "CP", "DP", "DOP"}
    for figures in (found["policy"], found["oracle"], *found["fixed"].values()):
        assert figures["finished"] == 20
        assert figures["makespan_s"] > 0
        assert figures["tokens_per_s"] == pytest.approx(160 / figures["makespan_s"], rel=1e-3)
        assert 0 < figures["ttft_s"]["p50"] <= figures["ttft_s"]["p99"]
        assert 0 < figures["itl_s"]["p50"] <= figures["itl_s"]["p99"]
        assert figures["switches"] >= 0
        assert figures["exposed_s"] >= 0
    assert found["regret"] >= 0
    assert found["fleet"]["ranks"] == 4


def test_people_get_tables(options: list[str]) -> None:
    done = run(*options, "--requests", "5", "--combined-groups", "1")
    assert done.exit_code == 0, done.output
    assert "Runs" in done.stdout
    assert "oracle" in done.stdout
    assert "regret" in done.stdout


def test_a_seed_repeats_a_generated_workload(options: list[str]) -> None:
    kept = [*options[: options.index("--trace")], *options[options.index("--trace") + 2 :]]
    made = [*kept, "--workload", "poisson", "--requests", "12", "--lengths", "0.02", "--json"]
    first, again, other = (run(*made, "--seed", seed).stdout.splitlines()[-1] for seed in "112")
    assert first == again
    assert first != other


def test_a_workload_of_which_nothing_fits_is_refused(options: list[str]) -> None:
    for args, words in (
        (["--lengths", "100"], r"none of the 20 requests of trace is served: the longest has [\d,]+ tokens"),
        (["--lengths", "100", "--requests", "3"], r"a group holds [\d,]+ .* more room \(--kv-bytes"),
        (["--lengths", "100", "--kv-bytes", "4000000000"], r"has [\d,]+ positions; .*\(--lengths\)$"),
    ):
        done = run(*options, *args, "--json")
        assert isinstance(done.exception, Infeasible)
        assert re.search(words, str(done.exception))
        assert done.stdout == ""
    assert exit_code(Infeasible("")) == 3


def test_a_plot_is_drawn(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    done = run(*options, "--requests", "8", "--plot", str(path))
    assert done.exit_code == 0, done.output
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_without_matplotlib_the_remedy_is_named(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(*options, "--plot", str(tmp_path / "run.png"))
    assert isinstance(done.exception, ConfigError)
    assert "pip install 'splash[plots]'" in str(done.exception)


def test_a_calendar_needs_a_start(options: list[str], tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[decode]\nenabled = false\n[[decode.calendar]]\nfrom = "22:00"\nto = "23:00"\npin = "CP"\n'
    )
    args = [*options, "--policy", str(policy), "--json"]
    refused = run(*args)
    assert isinstance(refused.exception, ConfigError)
    assert "say with --start when the workload begins" in str(refused.exception)
    for start, layouts in (("2026-03-01T23:30+01:00", {"TP", "CP"}), ("2026-03-01T23:30", {"TP", "DP"})):
        done = run(*args, "--start", start)
        assert done.exit_code == 0, done.output
        assert set(json.loads(done.stdout.splitlines()[-1])["policy"]["steps_by_layout"]) == layouts


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "nothing to simulate; give --trace FILE, or --workload"),
        (["--workload", "conversation"], "conversation is a trace; give its file with --trace"),
        (["--workload", "storm"], "'storm' is not known"),
        (["--workload", "agent", "--start", "noon"], "--start noon: give a date and time"),
        (["--workload", "agent", "--plot", "run.svg"], "let the name end in .png"),
        (["--workload", "agent", "--kv-bytes", "1000000"], "one width, not fp8"),
    ],
)
def test_bad_usage_says_what_to_do(args: list[str], words: str) -> None:
    done = run(*args)
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


def test_a_model_that_does_not_fit_is_infeasible() -> None:
    done = run("--workload", "agent", "--dtype", "bf16")
    assert isinstance(done.exception, Infeasible)
    assert "--ranks" in str(done.exception)


def test_the_command_is_in_the_table() -> None:
    assert "simulate" in cli.COMMANDS


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--fraction", "2"], "--fraction must be above 0 and at most 1, got 2.0"),
        (["--ttft", "-1"], "--ttft must be above 0"),
        (["--itl", "nan"], "--itl must be above 0"),
        (["--handoff-gbps", "inf"], "--handoff-gbps must be finite"),
        (["--graphs", "no"], "--graphs 'no' is not known; name one of auto, on, off"),
        (["--workload", "poisson"], "poisson is generated"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: list[str], args: list[str], words: str) -> None:
    done = run(*options, *args)
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


def test_a_generated_workload_has_a_rate_and_no_speed() -> None:
    done = run("--workload", "ramp", "--speed", "3")
    assert isinstance(done.exception, ConfigError)
    assert "--speed 3 is for traces; ramp has --rate" in str(done.exception)


def test_groups_that_the_policy_names_and_the_fleet_has_not_are_told(
    options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text("[group.decode-7]\nshadow = true")
    asked = [*options, "--policy", str(tmp_path / "policy.toml")]
    warning = "group.decode-7: no simulated group is called 'decode-7'; there are prefill-0, decode-0"
    told = json.loads(run(*asked, "--json").stdout.splitlines()[-1])
    assert told["warnings"] == [warning]
    assert "the policy's group.decode-7: no simulated group" in " ".join(run(*asked).stdout.split())
