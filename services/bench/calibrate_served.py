"""What service adds to a step, measured: streams that decode together on a running stack, layout by layout.

Invariant: only gaps between tokens count at which all streams decode, and no prompt is computed meanwhile.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from services.bench.calibrate_settings import CalibrateSettings
from services.bench.live import bench_stack, everywhere, vocab_of
from services.bench.live_settings import LiveSettings
from services.bench.settings import layouts_of, sizes
from services.bench.streams import Prompt, Streamed, random_tokens
from services.bench.workload import common_window_rate
from splash_core.config import UpSettings
from splash_core.cost.served import ServedStreams
from splash_core.layout.layout import Layout
from splash_core.units import MIB

_PROMPT = 4
"""Tokens: so short that all streams begin within few steps."""
_ROUNDS = 2
_KV_BYTES = 512 * MIB


def serve(settings: CalibrateSettings, *, dtype: str) -> list[dict[str, Any]]:
    """Rows `{"served": layout, "streams", "context", "ms"}`: `ms` has the mean gap of each round."""
    cells: dict[tuple[Layout, int], list[float]] = {}
    for layout, count, gap_s in _measured(settings, dtype):
        cells.setdefault((layout, count), []).append(round(gap_s * 1e3, 3))
    context = _PROMPT + settings.stream_tokens // 2
    return [
        {"served": layout.value, "streams": count, "context": context, "ms": gaps[1:]}  # the first warms up
        for (layout, count), gaps in cells.items()
    ]


def _measured(settings: CalibrateSettings, dtype: str) -> Iterator[tuple[Layout, int, float]]:
    """Layout, streams and mean gap of each measurement, round by round."""
    vocab = vocab_of(settings.model)
    layouts, counts = layouts_of(settings.layouts), sizes(settings.streams, "--streams")
    with bench_stack(_stack_settings(settings, dtype, most=max(counts))) as stack:
        for _ in range(1 + _ROUNDS):
            for layout in layouts:
                stack.go(everywhere(layout))
                for count in counts:
                    sys.stderr.write(f"calibrate: {count} streams in {layout}\n")
                    streams = stack.stream_all(_prompts(settings, count, vocab=vocab))
                    yield layout, count, common_gap_s(streams)


def _prompts(settings: CalibrateSettings, count: int, *, vocab: int) -> list[Prompt]:
    dice, output = np.random.default_rng(settings.seed + count), settings.stream_tokens
    return [Prompt(tokens=random_tokens(dice, _PROMPT, vocab=vocab), output=output) for _ in range(count)]


def served_of(rows: Sequence[Mapping[str, Any]]) -> tuple[ServedStreams, ...]:
    """What `serve` measured, in a calibration's document."""
    return tuple(
        ServedStreams(
            layout=Layout(row["served"]),
            streams=row["streams"],
            context=row["context"],
            seconds=statistics.median(row["ms"]) / 1e3,
        )
        for row in rows
        if "served" in row
    )


def common_gap_s(streams: Sequence[Streamed]) -> float:
    """The mean gap between two tokens of a stream while all streams decode.

    Raises:
        ConfigError: they never all do.
    """
    rate = common_window_rate([stream.times for stream in streams], flag="--stream-tokens")
    return len(streams) / rate


def _stack_settings(settings: CalibrateSettings, dtype: str, *, most: int) -> UpSettings:
    live = LiveSettings(
        model=settings.model,
        policy="off",
        dtype=dtype,
        ranks=settings.ranks,
        page_size=settings.page_size or 16,
        kv_bytes=_KV_BYTES,
        max_running=most,
    )
    return live.stack(layouts=settings.layouts)
