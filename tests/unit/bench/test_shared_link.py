"""What is told of switches and handoffs on one link: ratios to the right references, and the table."""

from typing import Any

from services.bench.shared_link_rows import shared_link_table, with_ratios


def row(arbiter: str, condition: str, mode: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "arbiter": arbiter,
        "condition": condition,
        "mode": mode,
        "requests": 40,
        "failed": 0,
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
        "| on | both | overlapped | 40 |  | 1,000 | 1.25 | 2 | 500.0 (700.0) | 25.00 | 1.25 "
        "| 1.00 MiB / 3.00 MiB / 0 B | 25% |"
    )
