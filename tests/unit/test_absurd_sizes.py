"""Numbers that nobody means: a command refuses them by name, or answers; none runs on for them."""

import sys

import pytest

from services.cli import main
from splash_core.errors import ConfigError
from splash_core.layout.catalog import InfeasibleLayout, catalog_of_arena
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.simulate.agenda import MOST_S, Agenda, EventOrder
from splash_core.spec.catalogue import named_spec

HUGE = "1" + "0" * 30
SIMULATE = ["simulate", "--workload", "poisson", "--requests", "3", "--dtype", "bf16", "--json"]
PLAN = ["plan", "--model", "deepseek-v3", "--json"]


def run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code, and what was said of an error in one line."""
    monkeypatch.setattr(sys, "argv", ["splash", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SIMULATE, "--ranks", HUGE], "'--ranks': "),
        ([*SIMULATE, "--prefill-groups", HUGE, "--kv-bytes", "4000000000"], "at most 100,000 are simulated"),
        ([*SIMULATE, "--combined-groups", "20000", "--kv-bytes", "4000000000"], "20000 groups of 8 ranks"),
        ([*SIMULATE, "--requests", HUGE], "requests must be from 1 to 10,000,000"),
        ([*SIMULATE, "--kv-bytes", "4000000000", "--handoff-gbps", "1e-300"], "handoffs be faster"),
        ([*SIMULATE, "--kv-bytes", "4000000000", "--handoff-gbps", "1e300"], "--handoff-gbps must be finite"),
        ([*SIMULATE, "--kv-bytes", "4000000000", "--rate", "1e-300"], "requests come faster (--rate"),
        ([*PLAN, "--ranks", HUGE], "'--ranks': "),
    ],
)
def test_what_no_run_could_end_with_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, told = run(arguments, monkeypatch, capsys)
    assert code == 2
    assert words in told


@pytest.mark.parametrize("kv_bytes", ["1000000000000000", HUGE])
def test_any_room_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kv_bytes: str
) -> None:
    assert run([*SIMULATE, "--kv-bytes", kv_bytes], monkeypatch, capsys)[0] == 0


def test_more_ranks_than_any_layout_divides_among_are_told_the_most_that_do() -> None:
    spec = named_spec("deepseek-v3")
    arena = ArenaMap.build(spec, num_ranks=10**15, page_size=1, elem_bytes=2, arena_bytes=1 << 50)
    verdict = catalog_of_arena(spec, arena, (Layout.TP,))[Layout.TP]
    assert isinstance(verdict, InfeasibleLayout)
    assert f"use {spec.heads} ranks" in verdict.reason


@pytest.mark.parametrize("when", [MOST_S * 2, float("inf"), float("nan")])
def test_a_time_at_which_steps_take_none_is_refused(when: float) -> None:
    assert MOST_S + 1e-6 > MOST_S, "up to here microseconds are told apart"
    Agenda().at(MOST_S, EventOrder.ARRIVAL, lambda: None)
    with pytest.raises(ConfigError, match="the simulated clock tells steps apart up to"):
        Agenda().at(when, EventOrder.ARRIVAL, lambda: None)
