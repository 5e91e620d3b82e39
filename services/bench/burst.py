"""Bursts of equal requests through one prefill and one decode group, in fixed layouts and under the policy.

A burst's time runs from when its requests are sent, all at one moment, to the last token of the last one:
queues, prefill, handoff and decode are in it. Invariant: arms differ in layouts alone; each begins on an idle
stack.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import numpy as np

from services.bench.burst_rows import Arm, Burst, arms_of, bursts_of, concluded
from services.bench.burst_settings import BurstSettings
from services.bench.document import BenchDocument, measured_here
from services.bench.live import BenchStack, accelerators, bench_stack, vocab_of
from services.bench.rollout_rows import arms_in_order, first_difference
from services.bench.streams import Prompt, random_tokens
from splash_core.config import UpSettings
from splash_core.layout.layout import Layout
from splash_core.leader.build import DEFAULT_LAYOUT
from splash_core.obs.vitals import VitalThreads

_LOOK_S = 0.05
_REST_S = 2.0
"""Before an arm, so that what is left of the one before has gone."""


def measure(settings: BurstSettings, progress: Callable[[str], None]) -> Iterator[BenchDocument]:
    """Run all arms; the document so far, after each."""
    arms, bursts = arms_of(settings.arms), bursts_of(settings.bursts)
    prompts = _prompts(bursts, seed=settings.seed, vocab=vocab_of(settings.model))
    end = time.monotonic() + settings.budget_s if settings.budget_s else float("inf")
    rows: list[dict[str, Any]] = []
    longest = 0.0
    progress("starting router, prefill group and decode group")
    with bench_stack(_stack_settings(settings, bursts, arms)) as stack:
        run_arm = _BurstArms(stack, prompts)
        progress("warming up")
        run_arm(arms[0])
        for run in range(settings.runs):
            for arm in arms_in_order(arms, run):
                began = time.monotonic()
                if began + longest > end:
                    return
                progress(f"run {run + 1} of {settings.runs}: {arm}")
                rows += [{"run": run, **row} for row in run_arm(arm)]
                longest = max(longest, time.monotonic() - began)
                told = concluded(rows)
                yield measured_here(
                    "burst",
                    settings=settings.told(),
                    rows=[*rows, *([told] if told else [])],
                    commit=settings.commit,
                    accelerators=accelerators(settings.device),
                )


def _stack_settings(settings: BurstSettings, bursts: Sequence[Burst], arms: Sequence[Arm]) -> UpSettings:
    named = {layout for arm in arms for layout in arm.layouts.values()} | set(DEFAULT_LAYOUT.values())
    return settings.stack(
        layouts=",".join(layout.value for layout in Layout if layout in named),
        max_model_len=max(burst.prompt_tokens + burst.output_tokens for burst in bursts) + 1,
    )


def _prompts(bursts: Sequence[Burst], *, seed: int, vocab: int) -> dict[Burst, list[Prompt]]:
    dice = np.random.default_rng(seed)
    return {
        burst: [
            Prompt(tokens=random_tokens(dice, burst.prompt_tokens, vocab=vocab), output=burst.output_tokens)
            for _ in range(burst.requests)
        ]
        for burst in bursts
    }


class _BurstArms:
    """Arms on a running stack; tokens of all are compared with those of the first."""

    def __init__(self, stack: BenchStack, prompts: Mapping[Burst, Sequence[Prompt]]) -> None:
        self._stack = stack
        self._prompts = prompts
        self._reference: dict[Burst, list[list[str]]] = {}

    def __call__(self, arm: Arm) -> list[dict[str, Any]]:
        """One arm's rows, a burst each."""
        if arm.layouts:
            self._stack.hold(arm.layouts)
        else:
            self._stack.let_go()
        time.sleep(_REST_S)
        return [self._burst(arm, burst) for burst in self._prompts]

    def _burst(self, arm: Arm, burst: Burst) -> dict[str, Any]:
        before = self._stack.epochs()
        with _Residents(self._stack.admin_url) as residents:
            streams = self._stack.stream_all(self._prompts[burst])
        seconds = max(stream.times[-1] for stream in streams)
        tokens = [stream.tokens for stream in streams]
        differing, difference = first_difference(self._reference.setdefault(burst, tokens), tokens)
        self._stack.await_idle()
        return {
            "what": "burst",
            "arm": str(arm),
            "batch": burst.requests,
            "input": burst.prompt_tokens,
            "output": burst.output_tokens,
            "seconds": round(seconds, 4),
            "tokens_per_s": round(burst.tokens / seconds, 1),
            "ttft_s_last": round(max(stream.times[0] for stream in streams), 4),
            "resident": dict(residents.most),
            "executed": self._stack.switched_since(before),
            "differing": differing,
            "difference": difference,
        }


class _Residents:
    """Most requests that ran at once in each phase, looked at a few times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._vitals = VitalThreads()
        self.most: dict[str, int] = {}

    def __enter__(self) -> "_Residents":
        self._thread = self._vitals.errand("look at who is resident", self._look)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self._vitals.check()

    def _look(self) -> None:
        with httpx.Client(base_url=self._url, timeout=10.0) as client:
            while not self._ended.wait(_LOOK_S):
                answer = client.get("/admin/cluster")
                for group in answer.json().get("groups", ()) if answer.is_success else ():
                    phase = group["phase"]
                    self.most[phase] = max(self.most.get(phase, 0), group["running"] or 0)
