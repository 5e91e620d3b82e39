"""`splash bench sweep`: how fast each layout prefills and decodes, over batches and lengths.

Prefill: prompts from empty to complete in steps of at most the chunk size, oldest first on each owner.
Decode: ordinary steps of one row each over histories that were put in place. A cell that does not fit gets a
row with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.bench.clock import median
from services.bench.counting import CountingComm
from services.bench.floors import Floors
from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import SweepSettings, layouts_of, sizes, words
from services.bench.sizing import LargestCell, device_kind
from services.bench.spmd import RankHost
from services.bench.step_collectives import StepCollectives
from splash_core.cost.precision import named_precision
from splash_core.errors import ConfigError, Infeasible
from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import Layout

_PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SweepCell:
    phase: str
    layout: Layout
    batch: int
    length: int
    """Prompt tokens (prefill) or cached tokens (decode) of each request."""

    def __str__(self) -> str:
        return f"{self.phase} {self.layout}, {self.batch} × {self.length}"

    def row(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "layout": self.layout,
            "batch": self.batch,
            "input": self.length,
            "tokens_per_s": None,
            "step_ms_p50": None,
            **fields,
        }


def run(host: RankHost, settings: SweepSettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    phases, layouts = words(settings.phase), layouts_of(settings.layouts)
    if not phases or any(phase not in _PHASES for phase in phases):
        raise ConfigError(f"--phase must be of {', '.join(_PHASES)}, got {settings.phase!r}")
    batches, lengths = sizes(settings.batch, "--batch"), sizes(settings.input, "--input")
    demand = LargestCell(
        layouts=layouts,
        batch=max(batches),
        tokens=max(lengths) + settings.steps + settings.warmup,
        rows=settings.chunk_tokens,
    )
    recorder = RowRecorder("sweep", host, settings)
    recorder.say("making weights")
    sweep = _Sweep(Rig(host, settings, layout=layouts[0], demand=demand), recorder, settings)
    for layout in layouts:
        for phase in phases:
            for batch in batches:
                for length in lengths:
                    sweep.measure(_SweepCell(phase=phase, layout=layout, batch=batch, length=length))
    return recorder.document().to_json()


class _Sweep:
    """The measurements of one rank."""

    def __init__(self, rig: Rig, recorder: RowRecorder, settings: SweepSettings) -> None:
        self._rig = rig
        self._recorder = recorder
        self._settings = settings
        self._floors = Floors.of(
            rig.spec, named_precision(settings.dtype), settings.ranks, device_kind(settings)
        )
        self._collectives = StepCollectives(rig)
        comm = rig.host.comms.compute
        self._counted = comm if isinstance(comm, CountingComm) else None
        """Where links are left out: what they would carry."""
        self._prefill_rate = 0.0
        """Tokens per second of the last prefill: what the next one is expected to reach."""

    def measure(self, cell: _SweepCell) -> None:
        """One cell; if it does not fit, a row with the reason."""
        rig = self._rig
        expected_s = 0.0
        if cell.phase == "prefill" and self._prefill_rate:
            expected_s = max(cell.batch * cell.length / self._prefill_rate, self._settings.cell_s)
        rig.group.clear()
        rig.go(cell.layout)
        try:
            rig.group.place(cell.batch, cell.length)
            if not self._recorder.begin(str(cell), seconds=expected_s):
                return
            fields = self._prefill(cell) if cell.phase == "prefill" else self._decode(cell)
        except Infeasible as refusal:
            fields = {"reason": str(refusal)}
        peak = rig.peak_bytes()
        self._recorder.add(cell.row(fields | ({"peak_bytes": peak} if peak else {})))

    def _prefill(self, cell: _SweepCell) -> dict[str, Any]:
        """Prompt tokens per second of the whole batch; the first run warms up unless it is the only one."""
        runs: list[list[float]] = []
        spent_s = 0.0
        while len(runs) <= self._settings.reps:
            runs.append(self._prefill_once(cell))
            spent_s += sum(runs[-1]) / 1e3
            # Times are those of the slowest rank, so all ranks decide alike.
            if spent_s + sum(runs[-1]) / 1e3 > self._settings.cell_s:
                break
        counted = runs[1:] or runs
        seconds = median([sum(times) / 1e3 for times in counted])
        self._prefill_rate = cell.batch * cell.length / seconds
        return {
            "tokens_per_s": self._prefill_rate,
            "step_ms_p50": median([step for times in counted for step in times]),
            "total_ms_p50": seconds * 1e3,
            "steps": len(counted[0]),
            "reps": len(counted),
            **self._prefill_floor(cell, seconds * 1e3),
            **self._left_out(),
        }

    def _left_out(self) -> dict[str, Any]:
        """What the last prefill would have received over links, where there are none."""
        if self._counted is None:
            return {}
        received = self._counted.received_bytes()
        rate = device_kind(self._settings).link_bps
        return {"received_bytes": received, "links_ms": 1e3 * received / rate}

    def _prefill_floor(self, cell: _SweepCell, total_ms: float) -> dict[str, Any]:
        if self._floors is None:
            return {}
        floor_ms = self._floors.prefill(cell.batch, cell.length)
        return {"floor_ms": floor_ms, "of_floor": floor_ms / total_ms}

    def _prefill_once(self, cell: _SweepCell) -> list[float]:
        """Times of the steps, in milliseconds."""
        rig, settings = self._rig, self._settings
        if self._counted is not None:
            self._counted.reset()
        rig.group.clear()
        rig.group.place(cell.batch, 0)
        owners = {seq: rig.group.owner(seq) for seq in rig.group.seqs}
        times: list[float] = []
        while left := self._left(cell.length):
            rows = owner_rows(left, owners, settings.chunk_tokens, settings.ranks)
            complete = [seq for seq, count in rows.items() if count == left[seq]]
            times.append(rig.timed(rig.group.step(rows, sampled=complete)).total)
        return times

    def _left(self, length: int) -> dict[SeqId, int]:
        left = {seq: length - self._rig.group.cached(seq) for seq in self._rig.group.seqs}
        return {seq: tokens for seq, tokens in left.items() if tokens}

    def _decode(self, cell: _SweepCell) -> dict[str, Any]:
        """Time of an ordinary decode step, one step ahead of the tokens that come back."""
        rig, settings = self._rig, self._settings
        rig.fill()
        fullest = [-(-batch // settings.ranks) for batch in sizes(settings.batch, "--batch")]
        recorded = rig.record_decode(rig.group.layout, fullest)
        # One step more in front: its interval begins at a common start, not at the end of a step.
        skipped = settings.warmup + 1
        run = rig.intervals(rig.group.decode_ahead(skipped + settings.steps))
        step_ms = median(run.ms[skipped:])
        return {
            "tokens_per_s": len(rig.group.seqs) / step_ms * 1e3,
            "step_ms_p50": step_ms,
            "steps": settings.steps,
            "replayed": min(sum(run.replayed), settings.steps),
            **recorded,
            **self._decode_floor(cell, step_ms),
        }

    def _decode_floor(self, cell: _SweepCell, step_ms: float) -> dict[str, Any]:
        collectives = self._collectives.fields(cell.layout, -(-cell.batch // self._settings.ranks))
        if self._floors is None:
            return collectives
        floor = self._floors.decode(cell.layout, cell.batch, cell.length)
        floor_ms = floor.weights + floor.attention + collectives["collectives_ms"]
        return collectives | {
            "floor_weights_ms": floor.weights,
            "floor_attention_ms": floor.attention,
            "floor_ms": floor_ms,
            "of_floor": floor_ms / step_ms,
        }


def owner_rows(
    left: Mapping[SeqId, int], owners: Mapping[SeqId, RankId], budget: int, num_ranks: int
) -> dict[SeqId, int]:
    """Rows of a prefill step: oldest first, an equal share of the budget for each owner's requests.

    What an owner has no use for goes to the oldest requests of the others.

    Args:
        left: tokens to compute of each request, oldest first.
        owners: the rank that owns each request where histories have owners.
        budget: most rows of the step.
        num_ranks: T.
    """
    share = [budget // num_ranks] * num_ranks
    rows: dict[SeqId, int] = {}
    for seq, tokens in left.items():
        rows[seq] = min(tokens, share[owners[seq]])
        share[owners[seq]] -= rows[seq]
    spare = budget - sum(rows.values())
    for seq, tokens in left.items():
        more = min(tokens - rows[seq], spare)
        rows[seq] += more
        spare -= more
    return {seq: count for seq, count in rows.items() if count}
