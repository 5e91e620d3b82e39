"""Rates of a running stack, in each fixed layout and under the policy, next to the baseline's."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.bench.live import BenchStack, bench_stack, everywhere
from services.bench.live_settings import LiveSettings
from services.bench.streams import Prompt
from services.bench.workload import (
    FIXED,
    POLICY,
    BenchSizes,
    common_window_rate,
    median_of,
    prompt_ids,
    rate_name,
)
from splash_core.config import UpSettings
from splash_core.layout.layout import Layout

_KV_BYTES = 512 << 20


class ServedStack:
    """A stack as the benchmark sees it."""

    def __init__(self, stack: BenchStack) -> None:
        self._stack = stack

    def decode_rate(self, workload: BenchSizes, batch: int) -> float:
        """Tokens per second while `batch` streams decode together."""

        def measure(rep: int) -> float:
            ids = [prompt_ids(workload.decode_prompt, seed=rep * 100 + row) for row in range(batch)]
            prompts = [Prompt(tokens=tuple(tokens), output=workload.decode_tokens) for tokens in ids]
            return common_window_rate([stream.times for stream in self._stack.stream_all(prompts)])

        return median_of(workload.reps, measure)

    def prefill_rate(self, workload: BenchSizes) -> float:
        """Prompt tokens per second to the first token."""

        def measure(rep: int) -> float:
            prompt = prompt_ids(workload.prefill_prompt, seed=5000 + rep)
            begin = time.perf_counter()
            self._stack.client.completions.create(
                model=self._stack.model,
                prompt=prompt,
                max_tokens=1,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            return workload.prefill_prompt / (time.perf_counter() - begin)

        return median_of(workload.reps, measure)


def bench_settings(model: Path, *, policy: str, layouts: Sequence[str] = FIXED) -> UpSettings:
    """The stack that is measured."""
    live = LiveSettings(model=str(model), policy=policy, kv_bytes=_KV_BYTES)
    return live.stack(layouts=",".join(layouts))


def serve_rows(
    model: Path,
    *,
    workload: BenchSizes,
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
        with bench_stack(bench_settings(model, policy=policy, layouts=offered)) as stack:
            for name in names:
                if name != POLICY:
                    stack.go(everywhere(Layout(name)))
                rows += _rows_of(ServedStack(stack), name, workload, baseline, progress)
    return rows


def _rows_of(
    served: ServedStack,
    layout: str,
    workload: BenchSizes,
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
