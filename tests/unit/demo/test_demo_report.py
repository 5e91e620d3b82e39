"""The demo's verdict follows from what was seen, and its JSON has the contract's shape."""

import io
import json
from itertools import permutations
from typing import Any

import pytest
from rich.console import Console

from services.demo.render import show, timeline
from services.demo.report import DemoReport, SwitchReport

LAYOUTS = ("TP", "CP", "DP", "DOP")


def switch(phase: str, source: str, target: str, **changes: Any) -> SwitchReport:
    """A switch that went well."""
    fields: dict[str, Any] = {
        "phase": phase,
        "source": source,
        "target": target,
        "mode": "overlapped",
        "exposed_ms": 1.25,
        "num_bytes": 2048,
        "at_s": 1.0,
        "took_s": 0.1,
        "streams": 3,
        "tokens_equal": True,
    }
    return SwitchReport(**fields | changes)


def good() -> DemoReport:
    """A report of a run in which all held."""
    return DemoReport(
        model="m",
        setup_s=12.34,
        run_s=56.78,
        answer="The capital of France is Paris.",
        generated=(72, 64),
        switches=[
            switch(phase, source, target, at_s=float(number))
            for phase in ("prefill", "decode")
            for number, (source, target) in enumerate(permutations(LAYOUTS, 2))
        ],
        audit={"pages_held": 0, "borrowed_pages_used": 9, "groups": []},
    )


def rendered(report: DemoReport) -> str:
    """What a person sees."""
    console = Console(file=io.StringIO(), width=120)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_good_run_is_ok_and_has_the_contracts_fields() -> None:
    report = good()
    assert report.problems == []
    line = json.dumps(report.to_json())
    assert "\n" not in line
    shown = json.loads(line)
    assert shown["ok"] is True
    wanted = {"ok", "answer", "model", "setup_s", "run_s", "borrowed_pages", "switches", "audit"}
    assert wanted <= set(shown)
    assert shown["borrowed_pages"] == 9
    assert len(shown["switches"]) == 24
    assert {"phase", "from", "to", "mode", "exposed_ms", "bytes", "tokens_equal"} <= set(shown["switches"][0])
    assert "every token as without switches" in rendered(report)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answer": "Lyon"}, "does not name Paris"),
        ({"generated": (72, 63)}, "wanted 64 or more"),
        ({"generated": ()}, "wanted 64 or more"),
        ({"audit": {}}, "no audit was taken"),
        ({"audit": {"pages_held": 2, "borrowed_pages_used": 1}}, "2 pages are held after the drain"),
        ({"audit": {"pages_held": 0, "borrowed_pages_used": 0}}, "borrowed slot"),
        ({"failures": ["it [broke]"]}, "it [broke]"),
    ],
)
def test_each_miss_is_a_problem_that_people_see(change: dict[str, Any], problem: str) -> None:
    report = good()
    for name, value in change.items():
        setattr(report, name, value)
    assert not report.ok
    assert any(problem in found for found in report.problems)
    assert problem in rendered(report).replace("\n", " ")
    assert report.to_json()["ok"] is False


def test_missing_repeated_and_differing_switches_are_problems() -> None:
    report = good()
    report.switches[0] = switch("prefill", "TP", "DP")
    report.switches[23] = switch("decode", "DOP", "DP", tokens_equal=False)
    assert report.problems == [
        "prefill: 11 of 12 directed switches were made",
        "decode DOP → DP: tokens differ from the unswitched run",
    ]
    assert "DIFFER" in rendered(report)


def test_timeline_shows_layouts_in_order_over_the_whole_width() -> None:
    entries = [switch("decode", "DP", "TP", at_s=1.0), switch("decode", "TP", "CP", at_s=2.0)]
    line = timeline(entries, "decode", width=60).plain
    assert [line.index(name) for name in ("DP", "TP", "CP")] == sorted(
        line.index(name) for name in ("DP", "TP", "CP")
    )
    assert len(line.removeprefix("decode  ").rsplit(" ", 2)[0]) == 60
    assert timeline(entries, "prefill").plain.endswith("no switches")
