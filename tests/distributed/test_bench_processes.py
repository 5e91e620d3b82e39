"""The benchmarks on ranks that are processes: the rows are there, and a failure names its cause."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.bench import switch
from services.bench.settings import BenchSettings, SwitchSettings
from services.bench.spmd import RankHost, resolved, run_spmd
from splash_core.errors import GroupFailed, Infeasible

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {"device": "cpu", "model": "tiny", "layers": 2, "warmup": 0}


def failing(host: RankHost, settings: BenchSettings) -> None:
    """Rank 1 ends early, the others wait for it."""
    del settings
    if host.rank == 1:
        raise ValueError("the flux is gone")
    host.agree(0.0)


def refusing(host: RankHost, settings: BenchSettings) -> None:
    """What is asked for does not fit rank 1."""
    del settings
    if host.rank == 1:
        raise Infeasible("too large", nearest="less")
    host.agree(0.0)


def meeting(host: RankHost, settings: BenchSettings) -> list[list[float]]:
    del settings
    assert host.agree(float(host.rank) + 5.0) == 5.0
    return host.gather([float(host.rank), 10.0])


def assert_no_rank_left() -> None:
    assert not [child for child in multiprocessing.active_children() if "splash-bench" in child.name]


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_numbers_of_all_ranks_meet_and_rank_0_answers(backend: str) -> None:
    settings = resolved(BenchSettings(**TINY, ranks=3, backend=backend))
    assert run_spmd(meeting, settings) == [[0.0, 10.0], [1.0, 10.0], [2.0, 10.0]]
    assert_no_rank_left()


def test_a_failure_ends_the_run_and_names_its_cause() -> None:
    with pytest.raises(GroupFailed, match=r"rank 1 failed(?s:.*)the flux is gone"):
        run_spmd(failing, resolved(BenchSettings(**TINY, ranks=2, step_timeout_s=20.0)))
    assert_no_rank_left()


def test_what_a_rank_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(Infeasible, match=r"^too large; nearest feasible: less$"):
        run_spmd(refusing, resolved(BenchSettings(**TINY, ranks=2, step_timeout_s=20.0)))
    assert_no_rank_left()


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_switches_are_measured_on_processes(backend: str, tmp_path: Path) -> None:
    asked = SwitchSettings(
        **TINY, ranks=2, backend=backend, batch="2", context="16", chunk="4", reps=1, out=str(tmp_path)
    )
    document = run_spmd(switch.run, resolved(asked))
    assert len(document["rows"]) == 24
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text()) == document


def test_the_light_entry_needs_nothing_of_the_services() -> None:
    """As on a machine that has torch and typer, but neither our stubs nor the serving libraries."""
    absent = (
        "splash_core.pb",
        "grpc",
        "google.protobuf",
        "transformers",
        "openai",
        "fastapi",
        "zmq",
        "httpx",
    )
    arguments = (
        "switch --device cpu --model tiny --layers 2 --backend inprocess --batch 2 --context 16 --chunk 4 "
        "--reps 1 --directions TP:DP --json"
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r})); "
        f"sys.argv[1:] = {arguments.split()!r}; "
        "from services.bench.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(row["from"], row["to"], row["mode"]) for row in document["rows"]] == [
        ("TP", "DP", "blocking"),
        ("TP", "DP", "overlapped"),
    ]
