"""What a transfer that hides slows a step down by, measured: each step alone, and again beside a transfer.

Whole pages go beside ordinary steps of either phase, as a switch copies them ahead, so many that they take
about half a step by themselves. Invariant: they go to slots that no page table shows, so no row sees them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.bench.calibrate_settings import CalibrateSettings
from services.bench.calibrate_steps import recorded_rows
from services.bench.clock import median
from services.bench.rig import Rig
from services.bench.settings import sizes
from splash_core.cost.interference import Beside
from splash_core.cost.load import Rows
from splash_core.cost.samples import rows_text
from splash_core.ids import RankId
from splash_core.layout.layout import RULES
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.step import StepPlan
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.precopy import PageCopies, PrecopyBatch

_REQUESTS = 2
"""Of each rank."""
_PART = 0.5
"""Of a step, that the transfer should take."""
_PROBE = 4
"""Pages of the first transfer that says how long a page takes."""
_ROUNDS = 2
"""A few pages take longer each than many: so often the number is corrected."""
_STEPS = 6
"""Equal ones in a row; the median of those between the first and the last counts."""
_LEAST_MS = 1e-4

Row = dict[str, Any]


class BesideTransfers:
    """The measurements of one rank; all ranks make the same ones in the same order.

    Args:
        rig: of the rank, in a layout in which histories have owners, empty.
        settings: resolved.
    """

    def __init__(self, rig: Rig, settings: CalibrateSettings) -> None:
        self._rig = rig
        self._settings = settings
        self._num_requests = _REQUESTS * settings.ranks
        page = settings.page_size
        self._history = max(settings.most_tokens // (4 * self._num_requests) // page, 1) * page
        most = min(max(sizes(settings.rows, "--rows")), settings.most_pairs // self._history)
        self._chunk = max(most // self._num_requests, 2)

    def rows(self) -> Iterator[Row]:
        """One row a phase, for the document; none where there is nobody to exchange with."""
        if self._settings.ranks > 1:
            for phase in Phase:
                yield from self._measured(phase)
                self._clear()

    def _measured(self, phase: Phase) -> Iterator[Row]:
        self._clear()
        self._rig.group.put([(item.context, item.owner) for item in self._items(phase)])
        if phase is Phase.DECODE:
            self._rig.record_decode(self._rig.group.layout, recorded_rows(self._settings))
        batch = self._fitting(phase)
        if not batch.moves:
            return  # no room for second copies
        pairs = [self._pair_ms(phase, batch, turn) for turn in range(self._settings.reps)]
        yield {
            "beside": phase.value,
            "layout": self._rig.group.layout.value,
            "requests": rows_text(self._items(phase)),
            "bytes": self._pages_into_each(batch) * self._rig.group.arena.slot_bytes,
            "alone_ms": _digits(max(self._alone_ms(batch), _LEAST_MS)),
            "plain_ms": [_digits(plain) for plain, _ in pairs],
            "beside_ms": [_digits(beside) for _, beside in pairs],
        }

    def _fitting(self, phase: Phase) -> PrecopyBatch:
        """A transfer that takes about half a step, or as many pages as there are."""
        wanted_ms, pages = _PART * self._block_ms(phase, None), _PROBE
        for _ in range(_ROUNDS):
            batch = self._batch(pages)
            page_ms = max(self._alone_ms(batch), _LEAST_MS) / self._pages_into_each(batch)
            pages = max(int(wanted_ms / page_ms), 1)
        return self._batch(pages)

    def _items(self, phase: Phase) -> list[Rows]:
        rows, samples = (1, 1) if phase is Phase.DECODE else (self._chunk, 0)
        return [Rows(rows, self._history, index, samples=samples) for index in range(self._num_requests)]

    def _pair_ms(self, phase: Phase, batch: PrecopyBatch, turn: int) -> tuple[float, float]:
        """A step alone and beside the batch, one or the other first."""
        if turn % 2:
            beside = self._block_ms(phase, batch)
            return self._block_ms(phase, None), beside
        return self._block_ms(phase, None), self._block_ms(phase, batch)

    def _block_ms(self, phase: Phase, batch: PrecopyBatch | None) -> float:
        """Of one step in a row of equal ones, as in service."""
        group = self._rig.group
        group.rewind()
        if phase is Phase.DECODE:
            return self._interval_ms(group.decode_ahead(_STEPS), batch)
        return self._interval_ms([self._chunks() for _ in range(_STEPS)], batch)

    def _chunks(self) -> StepPlan:
        group = self._rig.group
        group.rewind()
        return group.step(dict.fromkeys(group.seqs, self._chunk))

    def _alone_ms(self, batch: PrecopyBatch) -> float:
        """Of the transfer, without rows beside it."""
        empty = [self._rig.group.step({}) for _ in range(2 * _STEPS)]
        nothing = self._interval_ms(empty[:_STEPS], None)
        return self._interval_ms(empty[_STEPS:], batch) - nothing

    def _interval_ms(self, plans: Sequence[StepPlan], batch: PrecopyBatch | None) -> float:
        # As in `Steps`: the first interval begins at a common start, nothing waits behind the last step.
        run = self._rig.intervals([replace(plan, precopy=batch) for plan in plans])
        return median(run.ms[1:-1])

    def _batch(self, pages: int) -> PrecopyBatch:
        """Up to `pages` pages of histories, which stay, from each rank to the next one."""
        group, num_ranks = self._rig.group, self._settings.ranks
        table, copies = group.table, PageCopies(pages)
        table.ahead.clear()
        group.rewind()
        for page in table.pages:
            holders = table.copies(page)
            ranks = sorted((holders[0].rank, RankId((holders[0].rank + 1) % num_ranks)))
            if not copies.carries(holders, ranks):
                continue
            row = table.plan_ahead(page, ranks, lent=RULES[group.layout].lends)
            if row is not None:
                copies.add(page, holders, row)
        most = max(chunk_bytes(self._settings.staging_bytes) // group.arena.slot_bytes, 1)
        return PrecopyBatch(chunks=copies.chunks(capacity=most))

    def _pages_into_each(self, batch: PrecopyBatch) -> int:
        """Of the rank that receives most."""
        received = Counter(move.dst for move in batch.moves)
        return max(received.values(), default=1)

    def _clear(self) -> None:
        self._rig.group.table.ahead.clear()
        self._rig.group.clear()


def besides_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Beside, ...]:
    """What was measured, in a calibration's document; older ones have nothing."""
    return tuple(
        Beside(
            transfer_s=row["alone_ms"] / 1e3,
            pairs=tuple(
                (plain / 1e3, beside / 1e3)
                for plain, beside in zip(row["plain_ms"], row["beside_ms"], strict=True)
            ),
        )
        for row in rows
        if "beside" in row
    )


def _digits(ms: float) -> float:
    return float(f"{ms:.5g}")
