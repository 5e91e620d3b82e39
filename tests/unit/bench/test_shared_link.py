"""What is told of switches and handoffs on one link: ratios to the right references, and the table."""

from typing import Any

from services.bench.shared_link_rows import shared_link_table, with_ratios
from services.bench.shared_link_stages import Answered, first_texts, meets, stages_of


def row(arbiter: str, condition: str, mode: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "arbiter": arbiter,
        "condition": condition,
        "mode": mode,
        "requests": 40,
        "failed": 0,
        "stages_ms": {},
        "met_switch": 0,
        "ttft_ms_p50_met": None,
        "stages_ms_met": {},
        "gap_ms_p50": None,
        "gap_ms_p95": None,
        "ttft_ms_p50": None,
        "ttft_ms_p95": None,
        "switches": 2,
        "exposed_ms_p50": None,
        "exposed_ms_max": None,
        "exposed_ms_per_mb": None,
        "bytes_by_class": {},
        "link_bps": [5_000_000, 0],
        **fields,
    }


ROWS = [
    row("on", "idle", "precopied", exposed_ms_per_mb=50.0),
    row("on", "idle", "overlapped", exposed_ms_per_mb=20.0),
    row("on", "handoffs", ttft_ms_p95=800.0),
    row(
        "on",
        "both",
        "overlapped",
        ttft_ms_p95=1000.0,
        exposed_ms_p50=500.0,
        exposed_ms_max=700.0,
        exposed_ms_per_mb=25.0,
        bytes_by_class={"switch": 1 << 20, "handoff": 3 << 20},
        stages_ms={"lease": 10.0, "prefill": 20.0, "transfer": 400.0, "told": 5.0},
        met_switch=3,
        ttft_ms_p50_met=1200.0,
        stages_ms_met={"lease": 11.0, "prefill": 20.0, "transfer": 1150.0, "told": 6.0},
        gap_ms_p50=31.0,
        gap_ms_p95=204.4,
    ),
    row("off", "idle", "overlapped", exposed_ms_per_mb=10.0),
    row("off", "both", "overlapped", ttft_ms_p95=900.0, exposed_ms_per_mb=25.0),
]


def test_each_arm_is_compared_with_itself_in_the_same_mode() -> None:
    rows = with_ratios(ROWS, 20e6)
    both = [entry for entry in rows if entry["condition"] == "both"]
    assert [entry["exposed_ratio"] for entry in both] == [1.25, 2.5]
    assert [entry["ttft_ratio"] for entry in both] == [1.25, None]
    assert {entry["link_share"] for entry in rows} == {0.25}
    assert all("exposed_ratio" not in entry for entry in rows if entry["condition"] != "both")


def test_the_table_shows_ratios_and_bytes() -> None:
    line = shared_link_table(with_ratios(ROWS, 20e6)).splitlines()[5]
    assert line == (
        "| on | both | overlapped | 40 |  | 1,000 | 1.25 | 10 / 20 / 400 / 5 | 3 | 1,200 "
        "| 11 / 20 / 1,150 / 6 | 31 / 204 | 2 | 500.0 (700.0) | 25.00 | 1.25 "
        "| 1.00 MiB / 3.00 MiB / 0 B | 25% |"
    )


TIMELINE = {
    "sequences": [
        {"stages": {"queue_s": 0.25, "prefill_s": 0.5, "transfer_s": 1.0, "wait_s": 0.5, "decode_s": 9.0}}
    ]
}


def test_stages_add_up_to_the_first_text() -> None:
    stages = stages_of(TIMELINE, 2.0)
    assert stages == {"lease": 0.25, "prefill": 0.5, "transfer": 1.0, "told": 0.25}
    unfinished = {"sequences": [{"stages": dict.fromkeys(TIMELINE["sequences"][0]["stages"])}]}
    assert stages_of(unfinished, 2.0) == {"lease": 0.0, "prefill": 0.0, "transfer": 0.0, "told": 2.0}


def test_a_request_meets_a_switch_that_is_under_way_while_it_waits() -> None:
    switched = [(10.0, 11.0), (20.0, 21.0)]
    assert [meets(began, 0.5, switched) for began in (9.0, 9.75, 10.25, 10.75, 11.25, 19.75)] == [
        False, True, True, True, False, True,
    ]  # fmt: skip


def test_those_that_met_a_switch_are_told_apart() -> None:
    quick = Answered(ttft_s=1.0, stages=stages_of(TIMELINE, 2.0), met=False)
    slow = Answered(ttft_s=3.0, stages=stages_of(TIMELINE, 3.0), met=True)
    fields = first_texts([quick, quick, slow])
    assert (fields["requests"], fields["ttft_ms_p50"], fields["met_switch"]) == (3, 1000.0, 1)
    assert (fields["ttft_ms_p50_met"], fields["ttft_ms_p95_not_met"]) == (3000.0, 1000.0)
    assert fields["stages_ms_met"] == {"lease": 250.0, "prefill": 500.0, "transfer": 1000.0, "told": 1250.0}
    nobody = first_texts([])
    assert (nobody["requests"], nobody["ttft_ms_p95"], nobody["stages_ms"]) == (0, None, {})
