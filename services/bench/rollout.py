"""A rollout on one stack: every fixed layout and the policy, interleaved, with the same requests.

An arm is prepared while the stack is idle: a fixed one is pinned in both phases, as the simulator's fixed
runs are; the policy's begins where services start. Invariant: a run's arms differ in nothing else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from services.bench.document import BenchDocument, measured_here
from services.bench.live import BenchStack, accelerators, bench_stack, everywhere, vocab_of
from services.bench.rollout_cpu import CpuUse
from services.bench.rollout_load import prompts_of, rollout_workload
from services.bench.rollout_rows import Row, arms_in_order, concluded, first_difference, gap_fields
from services.bench.rollout_settings import RolloutSettings
from services.bench.rollout_simulated import lengths_text
from services.bench.streams import Prompt, Streamed
from services.bench.workload import FIXED, POLICY
from splash_core.config import UpSettings
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.leader.build import DEFAULT_LAYOUT
from splash_core.policy.config import load_document
from splash_core.policy.snapshot import Phase
from splash_core.simulate.workload import Request

ARMS = (*FIXED, POLICY)
_LAST = 2000
"""Decisions that are looked through after an arm."""
_ELSEWHERE = ("simulate", "profile")
"""Settings that the document says otherwise."""


def measure(settings: RolloutSettings, progress: Callable[[str], None]) -> Iterator[BenchDocument]:
    """Run all arms; the document so far, after each run.

    Raises:
        ConfigError: the policy is off, so that there is nothing to compare.
    """
    if settings.policy == "off":
        raise ConfigError("--policy off compares nothing; give auto, or a policy file")
    requests = rollout_workload(settings).requests
    prompts = prompts_of(requests, seed=settings.seed, vocab=vocab_of(settings.model))
    rows: list[Row] = [_workload_row(settings, requests)]
    progress("starting router, prefill group and decode group")
    with bench_stack(_stack_settings(settings)) as stack:
        arms = _RolloutArms(stack, prompts, rest_s=settings.rest_s)
        progress(f"warming up, {ARMS[0]}")
        arms.run(ARMS[0])
        for run in range(settings.runs):
            for arm in arms_in_order(ARMS, run):
                progress(f"run {run + 1} of {settings.runs}: {arm}")
                rows.append({"what": "arm", "run": run, **arms.run(arm)})
            yield measured_here(
                "rollout",
                settings=settings.told(without=_ELSEWHERE),
                rows=[*rows, concluded(rows)],
                commit=settings.commit,
                accelerators=accelerators(settings.device),
            )


def _workload_row(settings: RolloutSettings, requests: Sequence[Request]) -> Row:
    """What a simulation needs beside the settings."""
    return {
        "what": "workload",
        "requests": lengths_text(requests),
        "policy": load_document(settings.policy).to_toml(),
        "cores": psutil.cpu_count(),
    }


def _stack_settings(settings: RolloutSettings) -> UpSettings:
    return settings.stack(
        layouts=",".join(FIXED),
        prefill_layout=DEFAULT_LAYOUT[Phase.PREFILL].value,
        decode_layout=DEFAULT_LAYOUT[Phase.DECODE].value,
    )


class _RolloutArms:
    """Arms on a running stack; the first one's tokens are what all others are compared with."""

    def __init__(self, stack: BenchStack, prompts: Sequence[Prompt], *, rest_s: float) -> None:
        self._stack = stack
        self._prompts = prompts
        self._rest_s = rest_s
        self._cpu = CpuUse(stack.pids)
        self._reference: list[list[str]] = []

    def run(self, arm: str) -> dict[str, Any]:
        """One arm, from an idle stack to an idle stack."""
        if arm == POLICY:
            self._stack.let_go()
        else:
            self._stack.hold(everywhere(Layout(arm)))
        time.sleep(self._rest_s)
        self._cpu.since()
        epochs, began = self._stack.epochs(), time.time()
        streams = self._stack.stream_all(self._prompts)
        cpu_s = self._cpu.since()
        makespan_s = max(stream.times[-1] for stream in streams)
        tokens = [stream.tokens for stream in streams]
        self._reference = self._reference or tokens
        differing, difference = first_difference(self._reference, tokens)
        return {
            "arm": arm,
            "makespan_s": round(makespan_s, 4),
            "tokens_per_s": round(sum(map(len, tokens)) / makespan_s, 2),
            "ttft_s_last": round(max(stream.times[0] for stream in streams), 4),
            **gap_fields([gap for stream in streams for gap in stream.gaps_s]),
            "differing": differing,
            "difference": difference,
            "executed": self._stack.switched_since(epochs),
            "switches": self._switches(began),
            "left": _left(streams),
            "cpu_s": cpu_s,
        }

    def _switches(self, began: float) -> list[dict[str, Any]]:
        """What the policy decided to switch since then."""
        return [
            {
                "at_s": round(record["time"] - began, 2),
                "phase": record["phase"],
                "from": record["from"],
                "to": record["to"],
                "executor": record["executor"],
                "cost_ms": record["cost_ms"],
            }
            for record in self._stack.admin.get_list(f"/admin/decisions?last={_LAST}")
            if record["verdict"] == "SWITCH" and record["time"] >= began
        ]


def _left(streams: Sequence[Streamed]) -> list[float]:
    """When so few requests were left as half of all, a quarter and so on, to the last one, seconds."""
    ends = sorted(stream.times[-1] for stream in streams)
    left, moments = len(ends) // 2, list[float]()
    while left:
        moments.append(round(ends[len(ends) - left - 1], 3))
        left //= 2
    return moments
