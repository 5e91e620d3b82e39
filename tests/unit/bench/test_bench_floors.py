"""Floors by hand: bytes and flops of the measured shape, and the collectives of a step alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from services.bench import sweep
from services.bench.floors import Floors, row_elements
from services.bench.settings import INPROCESS, SweepSettings
from services.bench.shapes import bench_spec
from services.bench.spmd import resolved, run_spmd
from services.bench.step_collectives import NotingComm
from splash_core.cost.precision import named_precision
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.layout.layout import Layout
from splash_core.spec.hardware import named_gpu

V3 = bench_spec("v3")
H200 = named_gpu("h200")


def floors(num_ranks: int) -> Floors:
    found = Floors.of(V3, named_precision("bf16"), num_ranks, H200)
    assert found is not None
    return found


def test_a_row_of_the_measured_shape_costs_71_gigaflops() -> None:
    assert 2 * row_elements(V3) == pytest.approx(71.2e9, rel=1e-3)


def test_one_rank_reads_all_weights_but_the_embedding_in_any_layout() -> None:
    projections = 128 * (192 * 1536 + 512 * 256 + 128 * 7168)
    low_rank = 7168 * (576 + 1536)
    dense = 3 * 7168 * 18_432
    sparse = 7168 * 16 + 3 * 7168 * 2048 * (16 + 1)
    elements = 61 * (projections + low_rank) + 3 * dense + 58 * sparse + 129_280 * 7168
    for layout in Layout:
        # With 64 rows every expert is chosen by some row.
        assert floors(1).decode_weight_bytes(layout, 64) == pytest.approx(2 * elements, rel=1e-6)
    # One row chooses half of the 16 experts.
    unread = 58 * 3 * 7168 * 2048 * 8
    assert floors(1).decode_weight_bytes(Layout.TP, 1) == pytest.approx(2 * (elements - unread), rel=1e-6)


def test_layouts_differ_by_what_they_replicate_and_stripe() -> None:
    two = floors(2)
    tp, dp = (two.decode_weight_bytes(layout, 16) for layout in (Layout.TP, Layout.DP))
    assert dp - tp == pytest.approx(61 * 128 * (192 * 1536 + 512 * 256 + 128 * 7168))
    row_s = 1152 / 4.3e12
    keys = 16 * 4097
    # TP: every rank reads all histories with half of the heads, which memory bounds.
    assert two.decode(Layout.TP, 16, 4096).attention == pytest.approx(61e3 * keys * row_s)
    # DP, all heads on half of the histories: bound by flops.
    compute_s = keys / 2 * 128 * 2 * 1088 / 600e12
    assert compute_s > keys / 2 * row_s
    assert two.decode(Layout.DP, 16, 4096).attention == pytest.approx(61e3 * compute_s)
    # One request has one owner, or is striped over both.
    alone = [two.decode(layout, 1, 4096).attention for layout in (Layout.DOP, Layout.CP)]
    assert alone[0] == pytest.approx(2 * alone[1])


def test_prefill_is_bound_by_flops_shared_evenly() -> None:
    tokens, pairs = 2 * 4096, 2 * 4096 * 4097 / 2
    linear_s = 2 * (tokens * row_elements(V3) + 2 * 7168 * 129_280) / 780e12
    attention_s = 61 * 128 * 2 * (192 + 128) * pairs / 600e12
    assert floors(2).prefill(2, 4096) == pytest.approx(1e3 * (linear_s + attention_s) / 2)
    assert floors(4).prefill(2, 4096) == pytest.approx(floors(2).prefill(2, 4096) / 2)


def test_a_device_without_a_rate_for_the_type_has_no_floor() -> None:
    assert Floors.of(V3, named_precision("fp32"), 2, H200) is None
    assert Floors.of(replace(V3, layers=4), named_precision("fp32"), 2, named_gpu("cpu")) is not None


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_rows_of_a_sweep_carry_their_floors(graphs: str) -> None:
    sizes: dict[str, Any] = {"batch": "1,4", "input": "8", "chunk_tokens": 16, "steps": 2, "reps": 1}
    asked = SweepSettings(
        device="cpu", model="tiny", ranks=2, backend=INPROCESS, layouts="TP,DP,DOP", graphs=graphs, **sizes
    )
    rows = run_spmd(sweep.run, resolved(asked))["rows"]
    # Four layers, each with a gather and a scatter of rows around the FFN, and those of its attention;
    # embedding and head have one and two.
    per_layer = {"TP": 4, "DP": 2, "DOP": 6}
    for row in rows:
        assert row["floor_ms"] > 0
        if row["phase"] == "decode":
            assert row["collectives"] == 4 * per_layer[row["layout"]] + 3
            parts = row["floor_weights_ms"] + row["floor_attention_ms"] + row["collectives_ms"]
            assert row["floor_ms"] == pytest.approx(parts, rel=1e-3)
            assert row["of_floor"] == pytest.approx(row["floor_ms"] / row["step_ms_p50"], rel=1e-2)
        else:
            assert row["of_floor"] == pytest.approx(row["floor_ms"] / row["total_ms_p50"], rel=1e-2)


def test_noted_calls_are_passed_on_and_can_be_issued_again() -> None:
    def program(comms: RankComms) -> tuple[list[list[float]], list[list[float]]]:
        noting, rank = NotingComm(comms.compute), float(comms.compute.rank)
        x_NX = torch.tensor([[rank], [rank + 10]])
        given = [
            noting.all_gather_rows(x_NX, [2, 2], tag="gather"),
            noting.all_to_all_rows(x_NX, [1, 1], [1, 1], tag="trade"),
            noting.reduce_scatter_rows(x_NX, [1, 1], tag="sum"),
        ]
        assert [call.shape for call in noting.calls] == [(2, 1)] * 3
        again = [call.issue(comms.compute, x_NX) for call in noting.calls]
        return [rows.flatten().tolist() for rows in given], [rows.flatten().tolist() for rows in again]

    for rank, (given, again) in enumerate(run_ranks(2, program)):
        assert given == again
        assert given[0] == [0.0, 10.0, 1.0, 11.0]
        assert given[1] == ([0.0, 1.0] if rank == 0 else [10.0, 11.0])
        assert given[2] == ([1.0] if rank == 0 else [21.0])
