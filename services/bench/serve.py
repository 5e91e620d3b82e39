"""Rates of a running stack, in each fixed layout and under the policy, next to the baseline's."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai

from services.admin_client import AdminClient
from services.bench.workload import (
    FIXED,
    POLICY,
    Workload,
    common_window_rate,
    median_of,
    prompt_ids,
    rate_name,
)
from services.launch import Stack
from splash_core.config import UpSettings

_HOLD_S = 3600.0
_KV_BYTES = 512 << 20


class Served:
    """A stack as the benchmark sees it."""

    def __init__(self, stack: Stack, client: openai.OpenAI, model: str) -> None:
        self._stack = stack
        self._client = client
        self._model = model

    def set_layout(self, layout: str) -> None:
        """Put both phases into one layout."""
        with AdminClient(self._stack.admin_url, "") as admin:
            for phase in ("prefill", "decode"):
                admin.post("/admin/layout", {"phase": phase, "layout": layout, "hold_s": _HOLD_S})

    def decode_rate(self, workload: Workload, batch: int) -> float:
        """Tokens per second while `batch` streams decode together."""

        def measure(rep: int) -> float:
            prompts = [prompt_ids(workload.decode_prompt, seed=rep * 100 + row) for row in range(batch)]
            return common_window_rate(self._stream(prompts, workload.decode_tokens))

        return median_of(workload.reps, measure)

    def prefill_rate(self, workload: Workload) -> float:
        """Prompt tokens per second to the first token."""

        def measure(rep: int) -> float:
            prompt = prompt_ids(workload.prefill_prompt, seed=5000 + rep)
            begin = time.perf_counter()
            self._client.completions.create(
                model=self._model, prompt=prompt, max_tokens=1, temperature=0, extra_body={"ignore_eos": True}
            )
            return workload.prefill_prompt / (time.perf_counter() - begin)

        return median_of(workload.reps, measure)

    def _stream(self, prompts: Sequence[list[int]], num_tokens: int) -> list[list[float]]:
        arrivals: list[list[float]] = [[] for _ in prompts]
        errors: list[Exception] = []

        def run(prompt: list[int], times: list[float]) -> None:
            try:
                self._read(prompt, num_tokens, times)
            except openai.OpenAIError as error:
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=pair, daemon=True)
            for pair in zip(prompts, arrivals, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return arrivals

    def _read(self, prompt: list[int], num_tokens: int, times: list[float]) -> None:
        with self._client.completions.create(
            model=self._model,
            prompt=prompt,
            max_tokens=num_tokens,
            temperature=0,
            logprobs=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as events:
            for event in events:
                now = time.perf_counter()
                for choice in event.choices:
                    times += [now] * len(choice.logprobs.tokens or () if choice.logprobs else ())


def bench_settings(model: Path, *, policy: str, layouts: Sequence[str] = FIXED) -> UpSettings:
    """The stack that is measured."""
    return UpSettings(
        model=str(model),
        policy=policy,
        layouts=",".join(layouts),
        port=0,
        admin_port=0,
        kv_bytes=_KV_BYTES,
        canary_every_s=0.0,
    )


def serve_rows(
    model: Path,
    *,
    workload: Workload,
    baseline: Mapping[str, float],
    progress: Callable[[str], None],
    layouts: Sequence[str] = (*FIXED, POLICY),
) -> list[dict[str, Any]]:
    """Rows `{"what", "layout", "batch", "tokens_per_s", "baseline_tokens_per_s", "ratio"}`.

    Args:
        model: the checkpoint.
        workload: sizes.
        baseline: the baseline's rates by `rate_name`.
        progress: told what is measured next.
        layouts: fixed layouts, and `policy`.
    """
    rows: list[dict[str, Any]] = []
    fixed = [layout for layout in layouts if layout != POLICY]
    runs = [("off", fixed)] if fixed else []
    runs += [("auto", [POLICY])] if POLICY in layouts else []
    for policy, names in runs:
        progress(f"starting a stack with policy {policy}")
        offered = FIXED if policy == "auto" else names
        with Stack(bench_settings(model, policy=policy, layouts=offered)) as stack:
            client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
            served = Served(stack, client, model.name)
            for name in names:
                if name != POLICY:
                    served.set_layout(name)
                rows += _rows_of(served, name, workload, baseline, progress)
    return rows


def _rows_of(
    served: Served,
    layout: str,
    workload: Workload,
    baseline: Mapping[str, float],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in workload.batches:
        progress(f"{layout}: decode, {batch} at once")
        rows.append(_row("decode", layout, batch, served.decode_rate(workload, batch), baseline))
    progress(f"{layout}: prefill of {workload.prefill_prompt} tokens")
    rows.append(_row("prefill", layout, 1, served.prefill_rate(workload), baseline))
    return rows


def _row(what: str, layout: str, batch: int, rate: float, baseline: Mapping[str, float]) -> dict[str, Any]:
    base = baseline[rate_name(what, batch)]
    return {
        "what": what,
        "layout": layout,
        "batch": batch,
        "tokens_per_s": round(rate, 2),
        "baseline_tokens_per_s": round(base, 2),
        "ratio": round(rate / base, 3),
    }
