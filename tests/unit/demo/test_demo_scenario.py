"""The walk counts a switch only under live streams, and blames exactly the streams that it hit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from services.demo.scenario import DemoTarget, PhaseWalk, walk
from services.demo.streams import Wave

TOKENS = ((b"a", b"b"), (b"c", b"d"))


@dataclass
class FakeWave:
    """Two streams; stream i lives for `lives[i]` looks at who is alive."""

    lives: list[int]
    result: tuple[tuple[bytes, ...], ...] = TOKENS

    def look(self) -> frozenset[int]:
        """Who is alive at this look."""
        alive = frozenset(index for index, left in enumerate(self.lives) if left > 0)
        self.lives = [left - 1 for left in self.lives]
        return alive

    def ended(self) -> bool:
        """Nobody is alive."""
        return not any(left > 0 for left in self.lives)

    def finish(self) -> tuple[tuple[bytes, ...], ...]:
        """The tokens."""
        return self.result


@dataclass
class FakeAdmin:
    """Switches a layout that it remembers."""

    layout: str = "DP"
    asked: list[tuple[str, str]] = field(default_factory=list)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """`POST /admin/layout`."""
        assert path == "/admin/layout"
        before, self.layout = self.layout, body["layout"]
        self.asked.append((before, self.layout))
        return {"from": before, "to": self.layout, "mode": "overlapped", "exposed_ms": 1.0, "bytes": 10}


class FakeTarget:
    """Gives out scripted waves."""

    def __init__(self, *waves: FakeWave) -> None:
        self.admin = FakeAdmin()
        self._waves = list(waves)

    def wave(self) -> FakeWave:
        """The next wave."""
        return self._waves.pop(0)


PHASE = PhaseWalk(
    name="decode",
    start="DP",
    alive=cast("Callable[[Wave], frozenset[int]]", FakeWave.look),
    begun=lambda target, wave: True,
    pace=lambda wave: None,
)


def run_walk(target: FakeTarget) -> list[Any]:
    """The walk against a fake."""
    return walk(cast("DemoTarget", target), PHASE, TOKENS)


def test_twelve_switches_under_one_long_wave() -> None:
    reports = run_walk(FakeTarget(FakeWave([100, 100])))
    assert len({(entry.source, entry.target) for entry in reports}) == 12
    assert all(entry.tokens_equal and entry.streams == 2 for entry in reports)


def test_switch_after_the_wave_is_taken_back_and_made_again() -> None:
    # Five looks: two whole switches, and one that finds nobody alive afterwards.
    target = FakeTarget(FakeWave([5, 5]), FakeWave([100, 100]))
    reports = run_walk(target)
    assert len(reports) == 12
    assert target.admin.asked[2] == target.admin.asked[3][::-1] == target.admin.asked[4]
    assert target.admin.layout == "DP"
    assert len(target.admin.asked) == 14


def test_only_switches_that_hit_a_differing_stream_are_blamed() -> None:
    wrong = (TOKENS[0], (b"c", b"x"))
    reports = run_walk(FakeTarget(FakeWave([100, 4], wrong)))
    assert [entry.streams for entry in reports] == [2, 2] + [1] * 10
    assert [entry.tokens_equal for entry in reports] == [False, False] + [True] * 10


def test_walk_ends_with_what_it_has_when_streams_are_always_too_short() -> None:
    target = FakeTarget(*(FakeWave([1, 1]) for _ in range(8)))
    assert run_walk(target) == []
    assert target.admin.layout == "DP"


def test_failed_stream_ends_the_walk_with_its_error() -> None:
    class Broken(FakeWave):
        def finish(self) -> tuple[tuple[bytes, ...], ...]:
            raise TimeoutError("a stream did not end")

    with pytest.raises(TimeoutError, match="did not end"):
        run_walk(FakeTarget(Broken([100, 100])))
