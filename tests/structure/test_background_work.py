"""Background work is begun where its death is seen: by `obs/vitals.py`, or by code that awaits its end."""

import re

from tests.structure.test_code_shape import relative, source_files

THREADS = re.compile(r"\bthreading\.Thread\(")
TASKS = re.compile(r"\b(?:create_task|ensure_future)\(")

OWN_THREADS = {
    "splash_core/obs/vitals.py": "the mechanism",
    "splash_core/dist/inprocess.py": "ranks as threads: who started them raises their errors",
    "splash_core/engine/lanes.py": "moves of one switch: the step that waits for them raises their errors",
    "splash_core/transport/mooncake_probe.py": "one question, with a bound: no answer is an answer",
    "services/demo/streams.py": "one request of the demo: its result is asked for at the end",
}
AWAITED_TASKS = {
    "splash_core/obs/vitals.py": "the mechanism",
    "splash_core/leader/leader.py": "waits of one turn",
    "splash_core/leader/ranks.py": "waits of one call",
    "splash_core/leader/service.py": "the start, the loop and the signal: awaited until the process ends",
    "splash_core/leader/writers.py": "one fence: one that fails is begun anew with the next look",
    "services/bench/shared_link.py": "awaited by the benchmark",
    "services/bench/shared_link_load.py": "awaited by the benchmark",
    "services/prefill/handoff.py": "claims and pushes: what they raise fails their handoff",
    "services/prefill/partners.py": "one question: whoever asks awaits it",
    "services/prefill/servicer.py": "waits of one call",
    "services/router/attempt.py": "calls of one try",
    "services/router/correctness_check.py": "one check",
    "services/router/correctness_round.py": "one round, in a task group",
    "services/router/http.py": "one answer",
    "services/router/main.py": "waits of the router's life",
    "services/router/merge.py": "sources of one answer",
    "services/router/policy_delivery.py": "one order: one that fails is a trouble, and given again",
}


def users(pattern: re.Pattern[str]) -> set[str]:
    return {relative(path) for path in source_files() if pattern.search(path.read_text())}


def test_threads_are_begun_where_their_death_is_seen() -> None:
    assert users(THREADS) == OWN_THREADS.keys()


def test_tasks_are_begun_where_their_death_is_seen() -> None:
    assert users(TASKS) == AWAITED_TASKS.keys()
