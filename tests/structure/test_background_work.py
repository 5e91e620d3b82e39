"""Background work is begun where its death is seen: by `obs/vitals.py`, or by code that awaits its end.

Every place counts: one more in a file that has some is looked at as the first one in another file is.
"""

import re

from tests.structure.test_code_shape import relative, source_files

THREADS = re.compile(r"\b(?:Thread|ThreadPoolExecutor|to_thread|run_in_executor)\(")
TASKS = re.compile(r"\b(?:create_task|ensure_future)\(")

OWN_THREADS = {
    "splash_core/obs/vitals.py": (1, "the mechanism"),
    "splash_core/dist/inprocess.py": (1, "ranks as threads: who started them raises their errors"),
    "splash_core/engine/lanes.py": (
        1,
        "moves of one switch: the step that waits for them raises their errors",
    ),
    "splash_core/engine/meetings.py": (
        1,
        "a pool: whoever asks for a meeting takes its result, or its error",
    ),
    "splash_core/leader/control.py": (1, "one answer: awaited by the call"),
    "splash_core/transport/mooncake_probe.py": (1, "one question, with a bound: no answer is an answer"),
    "services/bench/streams.py": (1, "a pool: all results are taken"),
    "services/demo/streams.py": (1, "one request of the demo: its result is asked for at the end"),
    "services/router/gateway.py": (3, "the work of one request: awaited by it"),
    "services/router/policy_file.py": (1, "one read: awaited by the look"),
}
AWAITED_TASKS = {
    "splash_core/obs/vitals.py": (2, "the mechanism"),
    "splash_core/leader/leader.py": (2, "waits of one turn"),
    "splash_core/leader/ranks.py": (2, "waits of one call"),
    "splash_core/leader/service.py": (
        3,
        "the start, the loop and the signal: awaited until the process ends",
    ),
    "splash_core/leader/writers.py": (1, "one fence: one that fails is begun anew with the next look"),
    "services/bench/shared_link.py": (1, "awaited by the benchmark"),
    "services/bench/shared_link_load.py": (2, "awaited by the benchmark"),
    "services/prefill/handoff.py": (3, "claims and pushes: what they raise fails their handoff"),
    "services/prefill/partners.py": (1, "one question: whoever asks awaits it"),
    "services/prefill/servicer.py": (2, "waits of one call"),
    "services/router/attempt.py": (3, "calls of one try"),
    "services/router/correctness_check.py": (2, "one check"),
    "services/router/correctness_round.py": (1, "one round, in a task group"),
    "services/router/drain.py": (1, "waits of the router's life"),
    "services/router/http.py": (4, "one answer"),
    "services/router/merge.py": (1, "sources of one answer"),
    "services/router/policy_delivery.py": (1, "one order: one that fails is a trouble, and given again"),
}


def places(pattern: re.Pattern[str]) -> dict[str, int]:
    """How many there are in each file that has any."""
    found = {relative(path): len(pattern.findall(path.read_text())) for path in source_files()}
    return {path: count for path, count in found.items() if count}


def test_threads_are_begun_where_their_death_is_seen() -> None:
    assert places(THREADS) == {path: count for path, (count, _) in OWN_THREADS.items()}


def test_tasks_are_begun_where_their_death_is_seen() -> None:
    assert places(TASKS) == {path: count for path, (count, _) in AWAITED_TASKS.items()}
