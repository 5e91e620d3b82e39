"""`python -m tests.faults`: many repetitions of the fault matrix, and a document of what came of them.

Invariant: the document always tells what has been played so far; a failure in it names the case that plays
it again (`--rows`, `--seed` and its number).
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from services.bench.document import fresh_path, measured_here
from services.outputs import check_output
from splash_core.checkpoints.tiny import write_tiny
from splash_core.settings_base import Output
from tests.faults.bed import FLAGS, RANKS, Bed
from tests.faults.matrix import Played, played
from tests.faults.rows import MATRIX, TURNS, Row, turn_cases
from tests.faults.tally import not_reached, rows_of

_ROUND = 12
"""Cases of a row before the next row has its turn: all directions of a row of switches."""


def main() -> int:
    """Play, write the document, and say what failed; 1 if anything did."""
    options = _options()
    check_output(Output.FOLDER, Path(options.out), flag="--out")
    wanted = [row for row in MATRIX if not options.rows or row.name in options.rows]
    results: list[tuple[str, Played]] = []
    path: Path | None = None
    for number, transport in enumerate(options.transports):
        left_s = options.budget_s - (time.monotonic() - options.began)
        until = time.monotonic() + left_s / (len(options.transports) - number)
        for result in _rounds(options, wanted, transport, until):
            results.append((transport, result))
            _say(transport, result)
            document = replace(
                measured_here("faults", settings=_settings(options), rows=rows_of(results, wanted)),
                not_reached=not_reached(results, wanted, options.transports, options.repetitions),
            )
            path = path or fresh_path(Path(options.out), document)
            document.write_to(path)
    sys.stdout.write(f"{path}\n")
    return int(any(result.failure for _, result in results))


def _rounds(
    options: argparse.Namespace, wanted: Sequence[Row], transport: str, until: float
) -> Iterator[Played]:
    """All repetitions over one transport, or as many as there is time for; a new bed after a failure."""
    turns = [tuple(row for row in turn if row in wanted) for turn in TURNS]
    waiting = [
        (turn, turn_cases(turn, seed=options.seed, repetitions=options.repetitions)) for turn in turns if turn
    ]
    with tempfile.TemporaryDirectory(prefix="splash-faults-") as folder, asyncio.Runner() as runner:
        model = write_tiny(Path(folder) / "tiny")
        bed: Bed | None = None
        try:
            while waiting and time.monotonic() < until:
                turn, rest = waiting.pop(0)
                round_ = tuple(islice(rest, _ROUND * len(turn)))
                for case in round_:
                    if bed is None:
                        bed = runner.run(_started(model, Path(folder), transport))
                    result = runner.run(played(bed, case))
                    yield result
                    if result.failure:
                        runner.run(bed.close())
                        bed = None
                if round_:
                    waiting.append((turn, rest))
        finally:
            if bed is not None:
                runner.run(bed.close())


async def _started(model: Path, folder: Path, transport: str) -> Bed:
    bed = Bed(model, Path(tempfile.mkdtemp(dir=folder)), transport)
    await bed.start()
    return bed


def _say(transport: str, result: Played) -> None:
    case = result.case
    verdict = result.failure or "held"
    sys.stderr.write(f"{transport} {case.name} ({case.point}) {result.seconds:.1f} s: {verdict}\n")


def _settings(options: argparse.Namespace) -> dict[str, object]:
    groups = ", ".join(f"{name} {ranks}" for name, ranks in RANKS.items())
    return {"seed": options.seed, "repetitions": options.repetitions, "ranks": groups, **FLAGS}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100, help="of each row, over each transport")
    parser.add_argument("--transports", nargs="+", default=["shm", "mooncake"])
    parser.add_argument("--rows", nargs="+", default=[], choices=[row.name for row in MATRIX])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=14400.0, help="seconds; then no round begins")
    parser.add_argument("--out", default="docs/results")
    return parser.parse_args(namespace=argparse.Namespace(began=time.monotonic()))


if __name__ == "__main__":
    raise SystemExit(main())
