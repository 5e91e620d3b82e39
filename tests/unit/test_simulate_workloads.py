"""Workloads: what each generator makes, and traces as they are read."""

import statistics
from itertools import pairwise

import pytest

from splash_core.errors import ConfigError
from splash_core.simulate.generators import GENERATORS
from splash_core.simulate.workload import Scale, read_trace
from tests.support.simulated import made


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_is_a_workload(name: str) -> None:
    assert made(name, 100, seed=7) == made(name, 100, seed=7)
    assert made(name, 100, seed=7) != made(name, 100, seed=8)
    requests = made(name, 100).requests
    assert [request.key for request in requests] == list(range(100))
    assert all(1 <= request.output_tokens <= request.max_tokens for request in requests)
    assert all(request.prompt_tokens >= 1 for request in requests)


def test_a_rollout_comes_at_once_and_has_a_long_tail() -> None:
    requests = made("rl-rollout", 2000, lengths=1.0).requests
    outputs = sorted(request.output_tokens for request in requests)
    assert {request.arrival_s for request in requests} == {0.0}
    assert {request.max_tokens for request in requests} == {8192}
    assert 430 < statistics.median(outputs) < 600
    assert outputs[-1] > 8 * statistics.median(outputs)


def test_a_session_grows_and_waits_for_its_turn() -> None:
    requests = made("agent", 600, lengths=1.0, rate=3.0).requests
    turns = [(requests[request.follows], request) for request in requests if request.follows is not None]
    assert len(turns) > 300
    for before, after in turns:
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
    first = [request.arrival_s for request in requests if request.follows is None]
    assert all(later > sooner for sooner, later in pairwise(first))
    assert 2.2 < len(requests) / first[-1] < 4.0  # turns a second


def test_one_long_among_many_short() -> None:
    requests = made("long-short", 256, lengths=1.0).requests
    long = [request for request in requests if request.prompt_tokens > 10_000]
    assert [request.key for request in long] == [0, 64, 128, 192]
    assert max(r.prompt_tokens for r in requests if r not in long) <= 512


def test_a_ramp_changes_regime() -> None:
    requests = made("ramp", 2000, lengths=1.0, rate=5.0).requests
    low, high = requests[:100], requests[450:550]
    assert statistics.median(r.prompt_tokens for r in high) > 20 * statistics.median(
        r.prompt_tokens for r in low
    )
    pace = [rows[-1].arrival_s - rows[0].arrival_s for rows in (low, high)]
    assert pace[0] > 2 * pace[1]


@pytest.mark.parametrize("name", ["long-short", "ramp", "poisson"])
def test_the_mean_rate_is_the_stated_one(name: str) -> None:
    requests = made(name, 20_000, rate=5.0).requests
    assert len(requests) / requests[-1].arrival_s == pytest.approx(5.0, rel=0.02)


def test_poisson_arrivals_have_their_rate_and_mix() -> None:
    requests = made("poisson", 4000, lengths=1.0, rate=20.0).requests
    gaps = [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(requests)]
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.1)
    documents = sum(request.prompt_tokens > 2500 for request in requests) / len(requests)
    assert 0.2 < documents < 0.3


def test_an_unknown_workload_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'storm' is not known; name one of rl-rollout, agent"):
        made("storm", 1)


TRACE = """
{"timestamp": 5000, "input_length": 400, "output_length": 20, "hash_ids": [0, 1]}

{"timestamp": 2000, "input_length": 7, "output_length": 0}
{"timestamp": 9000, "input_length": 50, "output_length": 30}
"""


def test_a_trace_is_scaled_and_begins_at_zero() -> None:
    scale = Scale(lengths=0.5, speed=2.0, requests=2)
    workload = read_trace(TRACE.splitlines(), name="two", scale=scale)
    assert [(r.key, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in workload.requests] == [
        (0, 0.0, 4, 1),
        (1, 1.5, 200, 10),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: a JSON object is required, got list"),
        ('{"timestamp": 1, "input_length": 2}', "line 1: output_length: a number"),
        ('{"timestamp": -1, "input_length": 2, "output_length": 3}', "line 1: timestamp: a number"),
        ('{"timestamp": 1e400, "input_length": 2, "output_length": 3}', "line 1: timestamp: a number"),
        ('{"timestamp": 1, "input_length": 2.5, "output_length": 3}', "input_length: a whole number"),
        ("", "no request in the trace"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_trace([line], name="bad", scale=Scale())


@pytest.mark.parametrize("field", ["lengths", "speed"])
def test_a_scale_is_above_zero(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be above 0"):
        Scale(**{field: 0.0})  # type: ignore[arg-type]
