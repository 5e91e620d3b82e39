"""A rollout on one stack: every fixed layout and the policy, interleaved, with the same requests.

An arm is prepared while the stack is idle: a fixed one is pinned in both phases, as the simulator's fixed
runs are; the policy's begins where services start. Invariant: a run's arms differ in nothing else.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import openai
import psutil

from services.admin_client import AdminClient
from services.bench.document import BenchDocument, measured_here
from services.bench.rollout_cpu import CpuUse
from services.bench.rollout_load import Prompt, Streamed, prompts_of, rollout_workload, stream_all
from services.bench.rollout_rows import Row, arms_in_order, concluded, first_difference, gap_fields
from services.bench.rollout_settings import RolloutSettings
from services.bench.rollout_simulated import lengths_text
from services.bench.workload import FIXED, POLICY
from services.launch import Stack
from splash_core.config import UpSettings
from splash_core.errors import ConfigError
from splash_core.leader.build import DEFAULT_LAYOUT, resolve_model
from splash_core.policy.config import load_document
from splash_core.policy.snapshot import Phase
from splash_core.simulate.workload import Request
from splash_core.spec.model import ModelSpec

ARMS = (*FIXED, POLICY)
_HOLD_S = 3600.0
_LAST = 2000
"""Decisions that are looked through after an arm."""
_NOWHERE = ("out", "commit", "label", "run_dir", "simulate", "profile")
"""Settings that no result depends on, or that the document says otherwise."""


def measure(settings: RolloutSettings, progress: Callable[[str], None]) -> Iterator[BenchDocument]:
    """Run all arms; the document so far, after each run.

    Raises:
        ConfigError: the policy is off, so that there is nothing to compare.
    """
    if settings.policy == "off":
        raise ConfigError("--policy off compares nothing; give auto, or a policy file")
    checkpoint, requests = resolve_model(settings.model), rollout_workload(settings).requests
    vocab = ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name).vocab
    prompts = prompts_of(requests, seed=settings.seed, vocab=vocab)
    rows: list[Row] = [_workload_row(settings, requests)]
    progress("starting router, prefill group and decode group")
    with Stack(_stack_settings(settings)) as stack:
        client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
        with client, AdminClient(stack.admin_url, "") as admin:
            arms = _Arms(client, admin, prompts, settings, cpu=CpuUse(stack.pids), model=checkpoint.name)
            progress(f"warming up, {ARMS[0]}")
            arms.run(ARMS[0])
            for run in range(settings.runs):
                for arm in arms_in_order(ARMS, run):
                    progress(f"run {run + 1} of {settings.runs}: {arm}")
                    rows.append({"what": "arm", "run": run, **arms.run(arm)})
                yield _document(settings, [*rows, concluded(rows)])


def _document(settings: RolloutSettings, rows: Sequence[Row]) -> BenchDocument:
    kept = {name: value for name, value in asdict(settings).items() if name not in _NOWHERE}
    return measured_here("rollout", settings=kept, rows=rows, commit=settings.commit)


def _workload_row(settings: RolloutSettings, requests: Sequence[Request]) -> Row:
    """What a simulation needs beside the settings."""
    return {
        "what": "workload",
        "requests": lengths_text(requests),
        "policy": load_document(settings.policy).to_toml(),
        "cores": psutil.cpu_count(),
    }


def _stack_settings(settings: RolloutSettings) -> UpSettings:
    return UpSettings(
        model=settings.model,
        policy=settings.policy,
        profile=settings.profile,
        dtype=settings.dtype,
        layouts=",".join(FIXED),
        prefill_ranks=settings.ranks,
        decode_ranks=settings.ranks,
        prefill_layout=DEFAULT_LAYOUT[Phase.PREFILL].value,
        decode_layout=DEFAULT_LAYOUT[Phase.DECODE].value,
        page_size=settings.page_size,
        kv_bytes=settings.kv_bytes,
        chunk_tokens=settings.chunk_tokens,
        max_running=settings.max_running,
        canary_every_s=settings.canary_every_s,
        port=0,
        admin_port=0,
        run_dir=settings.run_dir,
    )


class _Arms:
    """Arms on a running stack; the first one's tokens are what all others are compared with."""

    def __init__(
        self,
        client: openai.OpenAI,
        admin: AdminClient,
        prompts: Sequence[Prompt],
        settings: RolloutSettings,
        *,
        cpu: CpuUse,
        model: str,
    ) -> None:
        self._client = client
        self._admin = admin
        self._prompts = prompts
        self._rest_s = settings.rest_s
        self._cpu = cpu
        self._model = model
        self._reference: list[list[str]] = []

    def run(self, arm: str) -> dict[str, Any]:
        """One arm, from an idle stack to an idle stack."""
        self._prepare(arm)
        time.sleep(self._rest_s)
        self._cpu.since()
        epochs, began = self._epochs(), time.time()
        streams = stream_all(self._client, self._prompts, model=self._model)
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
            "executed": sum(after - epochs[name] for name, after in self._epochs().items()),
            "switches": self._switches(began),
            "left": _left(streams),
            "cpu_s": cpu_s,
        }

    def _prepare(self, arm: str) -> None:
        for phase in Phase:
            of_phase = {"phase": phase.value}
            self._admin.post("/admin/unpin", of_phase)
            layout = DEFAULT_LAYOUT[phase].value if arm == POLICY else arm
            hold_s = 0.0 if arm == POLICY else _HOLD_S
            self._admin.post("/admin/layout", of_phase | {"layout": layout, "hold_s": hold_s})
            if arm != POLICY:
                self._admin.post("/admin/pin", of_phase | {"layout": layout})

    def _epochs(self) -> Mapping[str, int]:
        groups = self._admin.get("/admin/cluster")["groups"]
        return {group["group"]: group["layout_epoch"] for group in groups}

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
            for record in self._admin.get_list(f"/admin/decisions?last={_LAST}")
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
