"""Which decode steps are recorded, what is set aside for them, and who is told."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.config import GroupSettings
from splash_core.cost.footprint import Deployment, activation_bytes, memory_account
from splash_core.cost.precision import named_precision
from splash_core.engine.graphs import GraphReport
from splash_core.engine.recorded_steps import check_budget
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.leader.build import draw_blueprint
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from splash_core.rpc.rank_config import RankConfig
from splash_core.scheduling.buckets import decode_buckets
from splash_core.spec.catalogue import named_spec
from splash_core.units import GIB, MIB

V3 = named_spec("deepseek-v3")


@pytest.mark.parametrize(
    ("max_running", "num_ranks", "buckets"),
    [
        (64, 2, (1, 2, 4, 8, 16, 32, 64)),
        (64, 8, (1, 2, 4, 8, 16, 32, 64)),
        (256, 8, (1, 2, 4, 8, 16, 32, 64, 128)),
        (2000, 8, (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)),
        (5, 2, (1, 2, 4, 5)),
        (1, 4, (1,)),
        (3, 1, (1, 2, 3)),
    ],
)
def test_buckets_double_up_to_what_one_rank_may_have_at_home(
    max_running: int, num_ranks: int, buckets: tuple[int, ...]
) -> None:
    assert decode_buckets(max_running, num_ranks) == buckets


@given(max_running=st.integers(1, 2000), num_ranks=st.integers(1, 16))
def test_every_even_step_has_a_bucket_at_most_twice_its_rows(max_running: int, num_ranks: int) -> None:
    buckets = decode_buckets(max_running, num_ranks)
    assert list(buckets) == sorted(set(buckets))
    for rows in range(1, -(-max_running // num_ranks) + 1):
        bucket = next(bucket for bucket in buckets if bucket >= rows)
        assert bucket < 2 * rows or bucket == 1


def _report(layout: Layout, bucket: int, mib: float) -> GraphReport:
    return GraphReport(layout=layout, bucket=bucket, num_bytes=int(mib * MIB), record_s=1.0)


def test_what_is_recorded_must_fit_into_what_is_set_aside() -> None:
    reports = [_report(Layout.TP, 8, 30), _report(Layout.TP, 1, 20), _report(Layout.DP, 8, 50)]
    check_budget(reports, 100 * MIB)
    with pytest.raises(
        ConfigError, match=r"1/8 rows a rank take 100\.00 MiB \(TP 50\.00 MiB, DP 50\.00 MiB\)"
    ):
        check_budget(reports, 100 * MIB - 1)


def _deployment(**changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "precision": named_precision("bf16"),
        "num_ranks": 8,
        "memory_bytes": 140 * GIB,
        "fraction": 0.9,
        "page_size": 64,
        "chunk_tokens": 8192,
    }
    return Deployment(**fields | changes)


def test_a_plan_sets_nothing_aside_unless_asked() -> None:
    plain, asked = (memory_account(V3, _deployment(graph_bytes=size)) for size in (0, GIB))
    assert memory_account(V3, _deployment()) == plain
    for layout in Layout:
        assert asked.other_bytes[layout] - plain.other_bytes[layout] == GIB


def test_the_experts_that_compute_every_row_count_where_rows_are_few() -> None:
    # 32 local experts, 128 rows: both halves (2·2048), their product (2048), the output (7168), in bf16.
    dense = 32 * 128 * (3 * 2048 + 7168) * 2
    streams = 2 * 7168 * (2 * 128 + 2 * 16)
    assert activation_bytes(V3, Layout.TP, _deployment(chunk_tokens=128)) == streams + dense
    # Of more rows each goes to its own experts only, and the account is that of the largest step.
    one = activation_bytes(V3, Layout.DOP, _deployment(chunk_tokens=8192))
    assert one > 20 * dense


def _settings(checkpoint: Path, **changes: Any) -> GroupSettings:
    fields: dict[str, Any] = {"model": str(checkpoint), "device": "cuda", "memory_fraction": 0.1}
    return GroupSettings(**fields | changes)


def test_a_decode_group_on_gpus_sets_room_aside(tiny_v3: Path) -> None:
    def pool(phase: Phase, **changes: Any) -> int:
        arena = draw_blueprint(_settings(tiny_v3, **changes), phase).arena
        return len(arena.ordinary) * arena.slot_bytes

    without = pool(Phase.DECODE, graphs="off")
    assert without - pool(Phase.DECODE, graph_bytes=GIB) == pytest.approx(GIB, rel=1e-3)
    assert pool(Phase.PREFILL) == without
    assert without - pool(Phase.DECODE) == pytest.approx(2 * GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "phase", "records"),
    [
        ({}, Phase.DECODE, True),
        ({}, Phase.PREFILL, False),
        ({"graphs": "off"}, Phase.DECODE, False),
        ({"device": "cpu", "kv_bytes": 1 << 20}, Phase.DECODE, False),
        ({"device": "cpu", "kv_bytes": 1 << 20, "graphs": "on"}, Phase.DECODE, True),
        ({"device": "cpu", "kv_bytes": 1 << 20, "graphs": "on", "engine": "fake"}, Phase.DECODE, False),
    ],
)
def test_ranks_are_told_what_to_record(
    changes: dict[str, Any], phase: Phase, records: bool, tiny_v3: Path, tmp_path: Path
) -> None:
    settings = _settings(tiny_v3, run_dir=str(tmp_path), max_running=6, graph_bytes=3 * GIB, **changes)
    blueprint = draw_blueprint(dataclasses.replace(settings, layouts="TP,DOP"), phase)

    def no_phase(*unused: object) -> object:
        raise AssertionError("the group is not run")

    group = GroupProcess(blueprint, no_phase)  # type: ignore[arg-type]
    group.rank_config("ipc://leader").write(tmp_path / "ranks.json")
    config = RankConfig.read(tmp_path / "ranks.json")
    assert config.graph_layouts == ((Layout.TP, Layout.DOP) if records else ())
    assert config.graph_buckets == ((1, 2, 4, 6) if records else ())
    assert blueprint.scheduling.recorded_rows == (6 if records else 0)
    assert config.graph_bytes == 3 * GIB
