"""The fault matrix of the handoff over both transports, a few repetitions a row; `make faults` plays many."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.bed import Bed, bed
from tests.faults.matrix import play
from tests.faults.rows import TURNS, Row, turn_cases

pytestmark = pytest.mark.e2e
SEED = 1
REPETITIONS = 5


@pytest.fixture(scope="module")
def stage(
    transport: str, tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[asyncio.Runner, Bed]]:
    """All groups, for all rows of a transport."""
    with bed(tiny_v3, tmp_path_factory.mktemp("f"), transport) as started:
        yield started


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: ", ".join(row.name for row in turn))
def test_a_disturbed_handoff_leaves_nothing_and_changes_no_token(
    stage: tuple[asyncio.Runner, Bed], turn: tuple[Row, ...]
) -> None:
    runner, groups = stage
    for case in turn_cases(turn, seed=SEED, repetitions=REPETITIONS):
        runner.run(play(groups, case))
