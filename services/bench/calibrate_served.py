"""What service adds to a step, measured: streams that decode together on a running stack, layout by layout.

Invariant: only gaps between tokens count at which all streams decode, and no prompt is computed meanwhile.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import openai

from services.admin_client import AdminClient
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.rollout_load import Prompt, Streamed, prompt_ids, stream_all
from services.bench.settings import layouts_of, sizes
from services.launch import Stack
from splash_core.config import UpSettings
from splash_core.cost.served import Served
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.leader.build import resolve_model
from splash_core.policy.snapshot import Phase
from splash_core.spec.model import ModelSpec
from splash_core.units import MIB

_PROMPT = 4
"""Tokens: so short that all streams begin within few steps."""
_ROUNDS = 2
_KV_BYTES = 512 * MIB
_HOLD_S = 3600.0


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
    checkpoint = resolve_model(settings.model)
    vocab = ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name).vocab
    layouts, counts = layouts_of(settings.layouts), sizes(settings.streams, "--streams")
    with Stack(_stack_settings(settings, dtype, most=max(counts))) as stack:
        client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
        with client, AdminClient(stack.admin_url, "") as admin:
            for _ in range(1 + _ROUNDS):
                for layout in layouts:
                    _go(admin, layout)
                    for count in counts:
                        sys.stderr.write(f"calibrate: {count} streams in {layout}\n")
                        prompts = _prompts(settings, count, vocab=vocab)
                        streams = stream_all(client, prompts, model=checkpoint.name)
                        yield layout, count, common_gap_s(streams)


def _prompts(settings: CalibrateSettings, count: int, *, vocab: int) -> list[Prompt]:
    dice, output = np.random.default_rng(settings.seed + count), settings.stream_tokens
    return [Prompt(tokens=prompt_ids(dice, _PROMPT, vocab=vocab), output=output) for _ in range(count)]


def served_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Served, ...]:
    """What `serve` measured, in a calibration's document."""
    return tuple(
        Served(
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
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    told = sum(begin < time <= end for stream in streams for time in stream.times)
    if end <= begin:
        raise ConfigError(
            f"{len(streams)} streams were never all decoding at the same time; raise --stream-tokens"
        )
    return len(streams) * (end - begin) / told


def _go(admin: AdminClient, layout: Layout) -> None:
    for phase in Phase:
        body = {"phase": phase.value, "layout": layout.value, "hold_s": _HOLD_S}
        admin.post("/admin/layout", body)


def _stack_settings(settings: CalibrateSettings, dtype: str, *, most: int) -> UpSettings:
    return UpSettings(
        model=settings.model,
        policy="off",
        dtype=dtype,
        layouts=settings.layouts,
        prefill_ranks=settings.ranks,
        decode_ranks=settings.ranks,
        page_size=settings.page_size or 16,
        kv_bytes=_KV_BYTES,
        max_running=most,
        canary_every_s=0.0,
        port=0,
        admin_port=0,
    )
