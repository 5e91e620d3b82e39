"""The benchmarks on GPUs, at tiny size: NCCL, CUDA events, and the same rows as on CPU."""

from typing import Any

import pytest
import torch

from services.bench import capacity, primitives, sweep, switch
from services.bench.settings import (
    BenchSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.spmd import Program, resolved, run_spmd
from splash_core.layout.layout import Layout

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def tiny() -> dict[str, Any]:
    ranks = min(4, torch.cuda.device_count())
    return {"device": "cuda", "model": "tiny", "dtype": "fp32", "ranks": ranks, "arena_bytes": 16 * MIB}


def measure(program: Program, settings: BenchSettings) -> list[dict[str, Any]]:
    document = run_spmd(program, resolved(settings))
    assert "NVIDIA" in document["machine"]
    assert document["settings"]["nccl"]
    assert not [row for row in document["rows"] if "reason" in row]
    return document["rows"]


def test_primitives() -> None:
    asked = PrimitivesSettings(**tiny(), batch="4", context="256", reps=3)
    rows = measure(primitives.run, asked)
    # Nothing crosses a single rank.
    assert len(rows) == (11 if asked.ranks > 1 else 0)
    assert all(row["ms_p50"] > 0 and row["nccl_gb_s"] > 0 for row in rows)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_switches_in_all_directions(phase: str) -> None:
    asked = SwitchSettings(**tiny(), phase=phase, batch="4", context="256", chunk="32", reps=2, ordinary=3)
    rows = measure(switch.run, asked)
    assert len({(row["from"], row["to"]) for row in rows}) == 12
    assert all(row["step_ms_p50"] > 0 and row["ready_ms_p50"] > 0 for row in rows)
    assert all(row["peak_bytes"] > 16 * MIB for row in rows)


def test_capacity() -> None:
    for row in measure(capacity.run, CapacitySettings(**tiny(), chunk_tokens=256)):
        assert row["distinct_tokens"] == pytest.approx(row["account_tokens"], rel=0.01)
        assert row["peak_bytes"] > 16 * MIB


def test_sweep() -> None:
    asked = SweepSettings(**tiny(), batch="1,4", input="64", chunk_tokens=64, steps=3, reps=1)
    rows = measure(sweep.run, asked)
    assert {row["layout"] for row in rows} == set(Layout)
    assert all(row["tokens_per_s"] > 0 for row in rows)
