"""Bursts of equal requests through one prefill and one decode group, in fixed layouts and under the policy.

A burst's time runs from when its requests are sent, all at one moment, to the last token of the last one:
queues, prefill, handoff and decode are in it. Invariant: arms differ in layouts alone; each begins on an idle
stack.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import httpx
import numpy as np
import openai

from services.admin_client import AdminClient
from services.bench.burst_rows import Arm, Burst, arms_of, bursts_of, concluded
from services.bench.burst_settings import BurstSettings
from services.bench.document import BenchDocument, measured_here
from services.bench.rollout_load import Prompt, prompt_ids, stream_all
from services.bench.rollout_rows import arms_in_order, first_difference
from services.launch import Stack
from splash_core.config import UpSettings
from splash_core.errors import Unavailable
from splash_core.layout.layout import Layout
from splash_core.leader.build import DEFAULT_LAYOUT, resolve_model
from splash_core.policy.snapshot import Phase
from splash_core.spec.model import ModelSpec

_HOLD_S = 3600.0
_LOOK_S = 0.05
_IDLE_S = 60.0
_REST_S = 2.0
"""Before an arm, so that what is left of the one before has gone."""
_NOWHERE = ("out", "commit", "label")


def measure(settings: BurstSettings, progress: Callable[[str], None]) -> Iterator[BenchDocument]:
    """Run all arms; the document so far, after each."""
    arms, bursts = arms_of(settings.arms), bursts_of(settings.bursts)
    checkpoint = resolve_model(settings.model)
    vocab = ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name).vocab
    kept = {name: value for name, value in asdict(settings).items() if name not in _NOWHERE}
    end = time.monotonic() + settings.budget_s if settings.budget_s else float("inf")
    rows: list[dict[str, Any]] = []
    longest = 0.0
    progress("starting router, prefill group and decode group")
    with Stack(_stack_settings(settings, bursts, arms)) as stack:
        client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
        with client, AdminClient(stack.admin_url, "") as admin:
            prompts = _prompts(bursts, seed=settings.seed, vocab=vocab)
            run_arm = _Arms(client, admin, stack.admin_url, prompts, model=checkpoint.name)
            progress("warming up")
            run_arm(arms[0])
            names = {str(arm): arm for arm in arms}
            for run in range(settings.runs):
                for name in arms_in_order(list(names), run):
                    began = time.monotonic()
                    if began + longest > end:
                        return
                    progress(f"run {run + 1} of {settings.runs}: {name}")
                    rows += [{"run": run, **row} for row in run_arm(names[name])]
                    longest = max(longest, time.monotonic() - began)
                    told = concluded(rows)
                    yield measured_here(
                        "burst",
                        settings=kept,
                        rows=[*rows, *([told] if told else [])],
                        commit=settings.commit,
                        accelerators=_accelerators(settings),
                    )


def _accelerators(settings: BurstSettings) -> str:
    if settings.device == "cpu":
        return ""
    # Imported here: on CPU nothing else in this process needs it.
    import torch

    return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"


def _stack_settings(settings: BurstSettings, bursts: Sequence[Burst], arms: Sequence[Arm]) -> UpSettings:
    named = {layout for arm in arms for layout in arm.layouts.values()}
    return UpSettings(
        model=settings.model,
        load_format=settings.load_format,
        policy=settings.policy,
        profile=settings.profile,
        device=settings.device,
        prefill_gpus=settings.prefill_gpus,
        decode_gpus=settings.decode_gpus,
        memory_fraction=settings.memory_fraction,
        dtype=settings.dtype,
        layouts=",".join(layout.value for layout in Layout if layout in named | set(DEFAULT_LAYOUT.values())),
        prefill_ranks=settings.ranks,
        decode_ranks=settings.ranks,
        page_size=settings.page_size,
        max_model_len=max(burst.prompt_tokens + burst.output_tokens for burst in bursts) + 1,
        chunk_tokens=settings.chunk_tokens,
        max_running=settings.max_running,
        canary_every_s=0.0,
        port=0,
        admin_port=0,
        kv_bytes=settings.kv_bytes,
    )


def _prompts(bursts: Sequence[Burst], *, seed: int, vocab: int) -> dict[Burst, list[Prompt]]:
    dice = np.random.default_rng(seed)
    return {
        burst: [
            Prompt(tokens=prompt_ids(dice, burst.prompt_tokens, vocab=vocab), output=burst.output_tokens)
            for _ in range(burst.requests)
        ]
        for burst in bursts
    }


class _Arms:
    """Arms on a running stack; tokens of all are compared with those of the first."""

    def __init__(
        self,
        client: openai.OpenAI,
        admin: AdminClient,
        admin_url: str,
        prompts: Mapping[Burst, Sequence[Prompt]],
        *,
        model: str,
    ) -> None:
        self._client = client
        self._admin = admin
        self._admin_url = admin_url
        self._prompts = prompts
        self._model = model
        self._reference: dict[Burst, list[list[str]]] = {}

    def __call__(self, arm: Arm) -> list[dict[str, Any]]:
        """One arm's rows, a burst each."""
        self._prepare(arm)
        time.sleep(_REST_S)
        return [self._burst(arm, burst) for burst in self._prompts]

    def _prepare(self, arm: Arm) -> None:
        for phase in Phase:
            of_phase = {"phase": phase.value}
            self._admin.post("/admin/unpin", of_phase)
            layout = arm.layouts.get(phase, DEFAULT_LAYOUT[phase]).value
            hold_s = _HOLD_S if arm.layouts else 0.0
            self._admin.post("/admin/layout", of_phase | {"layout": layout, "hold_s": hold_s})
            if arm.layouts:
                self._admin.post("/admin/pin", of_phase | {"layout": layout})

    def _burst(self, arm: Arm, burst: Burst) -> dict[str, Any]:
        before = self._epochs()
        with _Residents(self._admin_url) as residents:
            streams = stream_all(self._client, self._prompts[burst], model=self._model)
        seconds = max(stream.times[-1] for stream in streams)
        tokens = [stream.tokens for stream in streams]
        differing, difference = first_difference(self._reference.setdefault(burst, tokens), tokens)
        self._await_idle()
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
            "executed": sum(after - before[name] for name, after in self._epochs().items()),
            "differing": differing,
            "difference": difference,
        }

    def _epochs(self) -> Mapping[str, int]:
        groups = self._admin.get("/admin/cluster")["groups"]
        return {group["group"]: group["layout_epoch"] for group in groups}

    def _await_idle(self) -> None:
        end = time.monotonic() + _IDLE_S
        while self._admin.get("/admin/audit")["pages_held"]:
            if time.monotonic() > end:
                raise Unavailable(f"pages are held {_IDLE_S:g} s after the last request; see `splash audit`")
            time.sleep(_LOOK_S)


class _Residents:
    """Most requests that ran at once in each phase, looked at a few times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="residents", daemon=True)
        self.most: dict[str, int] = {}

    def __enter__(self) -> "_Residents":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        with httpx.Client(base_url=self._url, timeout=10.0) as client:
            while not self._ended.wait(_LOOK_S):
                answer = client.get("/admin/cluster")
                for group in answer.json().get("groups", ()) if answer.is_success else ():
                    phase = group["phase"]
                    self.most[phase] = max(self.most.get(phase, 0), group["running"] or 0)
