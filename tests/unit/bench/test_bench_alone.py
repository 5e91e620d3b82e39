"""One rank of T by itself: shapes and memory of T ranks, and estimates that say what they are made of."""

from typing import Any

import pytest
import torch

from services.bench import capacity, sweep, switch
from services.bench.alone import AloneComm, alone_comms
from services.bench.counting import CountingComm
from services.bench.results_page import page
from services.bench.settings import (
    ALONE,
    INPROCESS,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.spmd import resolved, run_spmd
from splash_core.dist.comm import Transfer
from splash_core.errors import ConfigError
from splash_core.ids import RankId

TINY: dict[str, Any] = {"device": "cpu", "model": "tiny", "ranks": 4}
CPU = torch.device("cpu")


def test_rows_of_others_have_their_place_and_are_not_ones_own() -> None:
    comm, x_ND = AloneComm(4), torch.randn(3, 64)
    gathered = comm.all_gather_rows(x_ND, [3] * 4, tag="t")
    assert gathered.shape == (12, 64)
    assert torch.equal(gathered[:3], x_ND)
    assert len({tuple(block.flatten().tolist()) for block in gathered.split(3)}) == 4
    assert torch.equal(gathered.abs(), x_ND.abs().repeat(4, 1))
    ids = torch.arange(3)
    assert torch.equal(comm.all_gather_rows(ids, [3] * 4, tag="t"), ids.repeat(4)), "an index stays one"


@pytest.mark.parametrize("counts", [[3, 2, 2, 0], [3, 5, 1, 2]])
def test_uneven_rows(counts: list[int]) -> None:
    comm, x_ND = AloneComm(4), torch.randn(3, 8)
    assert comm.all_gather_rows(x_ND, counts, tag="t").shape == (sum(counts), 8)
    assert comm.all_to_all_rows(x_ND, [3, 0, 0, 0], counts, tag="t").shape == (sum(counts), 8)
    assert comm.reduce_scatter_rows(torch.randn(sum(counts), 8), counts, tag="t").shape == (counts[0], 8)
    assert comm.all_to_all_rows(x_ND[:0], [0] * 4, counts, tag="t").count_nonzero() == 0


def test_what_would_be_received_is_written() -> None:
    into, other = torch.full((2, 3), 7.0), torch.full((5,), 7.0)
    sends = [Transfer(RankId(1), torch.ones(2, 3))]
    AloneComm(2).exchange(sends, [Transfer(RankId(1), into), Transfer(RankId(1), other)], tag="t")
    assert torch.equal(into, torch.ones(2, 3))
    assert torch.equal(other, torch.zeros(5))


def test_pools_are_those_of_four_ranks() -> None:
    rows = {
        backend: run_spmd(capacity.run, resolved(CapacitySettings(**TINY, backend=backend)))["rows"]
        for backend in (ALONE, INPROCESS)
    }
    assert [row["distinct_tokens"] for row in rows[ALONE]] == [
        row["distinct_tokens"] for row in rows[INPROCESS]
    ]
    assert [row["layout"] for row in rows[ALONE]] == ["TP", "CP", "DP", "DOP", "DOP-P"]


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_every_cell_of_a_sweep_has_a_time_and_what_links_would_carry(graphs: str) -> None:
    asked = SweepSettings(**TINY, backend=ALONE, graphs=graphs, batch="1,4", input="64", steps=3, reps=1)
    document = run_spmd(sweep.run, resolved(asked))
    assert len(document["rows"]) == 20
    for row in document["rows"]:
        assert row["step_ms_p50"] > 0
        if row["phase"] == "prefill":
            assert row["received_bytes"] > 0
            assert row["links_ms"] > 0
        else:
            assert row["collectives"] > 0


def test_a_switch_of_one_rank_has_a_first_wait() -> None:
    asked = SwitchSettings(
        **TINY, backend=ALONE, batch="4", context="64", chunk="16", modes="overlapped", reps=1
    )
    rows = run_spmd(switch.run, resolved(asked))["rows"]
    assert len(rows) == 12
    assert all(row["first_wait_ms_p50"] >= 0 for row in rows)


def test_bytes_are_those_that_a_rank_of_four_receives() -> None:
    comms, x_ND = alone_comms(4, CPU), torch.randn(3, 8)
    comms.compute.all_gather_rows(x_ND, [3] * 4, tag="t")
    assert isinstance(comms.compute, CountingComm)
    assert comms.compute.received_bytes() == 9 * 8 * 4


def test_benchmarks_that_measure_links_refuse_it() -> None:
    with pytest.raises(ConfigError, match="leaves out the links"):
        resolved(PrimitivesSettings(**TINY, backend=ALONE))


def _document(bench: str, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    return {
        "bench": bench,
        "machine": "m",
        "commit": "abc1234",
        "date": settings.pop("date", "2026-12-01"),
        "settings": {"model": "bench-v3", "layers": 61, "device": "cuda", **settings},
        "rows": rows,
    }


def test_links_are_added_from_sweeps_that_had_them() -> None:
    def decode(batch: int, step: float, collectives: float) -> dict[str, Any]:
        cell = {"phase": "decode", "layout": "DP", "batch": batch, "input": 4096}
        return cell | {"tokens_per_s": 1.0, "step_ms_p50": step, "collectives_ms": collectives}

    prefill = {"phase": "prefill", "layout": "DP", "batch": 4, "input": 4096, "tokens_per_s": 1.0}
    mine = [
        decode(16, 17.0, 0.5),
        decode(64, 20.0, 0.5),
        prefill | {"step_ms_p50": 300.0, "total_ms_p50": 600.0, "links_ms": 40.0},
    ]
    theirs = [
        {"phase": "decode", "layout": "DP", "batch": 16, "input": 4096, "step_ms_p50": 20.0},
        {"phase": "prefill", "layout": "DP", "batch": 4, "input": 4096, "tokens_per_s": 16384.0},
    ]
    text = page(
        [
            _document("sweep", mine, backend=ALONE, ranks=4),
            _document("sweep", [decode(16, 25.0, 9.9)], ranks=2, date="2026-11-29"),
            _document("sweep", [decode(16, 25.0, 1.5)], ranks=2, date="2026-11-30"),
            _document("sweep", [decode(16, 25.0, 8.8)], ranks=2, layers=12, date="2026-12-02"),
            _document("peer", theirs, engine="peer", ranks=4),
        ]
    )
    assert "| decode | DP | 16 | 4,096 | 16.50 | 1.50, T = 2 | 18.00 | 888.9 | 20.00 | 0.90 |" in text
    assert "| decode | DP | 64 | 4,096 | 19.50 |  |  |  |  |  |" in text
    assert "| prefill | DP | 4 | 4,096 | 600.0 | 40.00 | 640.0 | 25,600 | 1,000 | 0.64 |" in text
    assert "ours on 4" not in text, "an estimate is not among what was measured per GPU"
