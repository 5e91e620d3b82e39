"""What is told of switching steps: medians of paired differences, and where the time went.

Pure arithmetic on measured steps; `docs/results/README.md` states the same formulas. All times in
milliseconds. Differences are not floored: noise shows as small negative figures.

Legend: τ_i time to move layer i's state, c_i time to compute layer i (docs/model.md §5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.bench.clock import median, percentile
from services.bench.rig import TimedStep
from splash_core.cost.switch import exposed_with_one_buffer
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode

Direction = tuple[Layout, Layout]
"""From, to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCell:
    """What stands still while directions and modes vary."""

    batch: int
    context: int
    chunk: int
    """Rows of a step over all requests: in decode one of each."""

    def __str__(self) -> str:
        return f"{self.batch} × {self.context}, {self.chunk} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPair:
    """A switching step, and the same rows in the same layout with the state in place."""

    switching: TimedStep
    ready: TimedStep
    plan_ms: float
    """Time that the leader took to plan the switch, outside the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Decode steps around a switching step: intervals between the ends of steps."""

    before: tuple[float, ...]
    """In the old layout, ordinary steps."""
    ahead: tuple[float, ...]
    """Ordinary steps in the old layout beside which state was copied ahead."""
    switching: float
    after: tuple[float, ...]
    """In the new layout, ordinary steps."""
    mode: SwitchMode
    """In which the switching step was executed: another than asked for where the scheduler fell back."""
    replayed: tuple[bool, ...]
    """Which steps were replayed from a recording, the one before the window included."""
    switching_replayed: bool
    """Whether the switching step was."""
    received_bytes: int
    """In the switching step."""
    ahead_bytes: int
    """In the ordinary steps before it."""
    plan_ms: float
    churn: "ChurnRecord | None" = None
    """Of a window in which requests came and went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRecord:
    """What happened while state was copied ahead, and what it undid; bytes received by all ranks together."""

    cancelled: int
    finished: int
    admitted: int
    turned_away: int
    copied_bytes: int
    invalidated_bytes: int
    recopied_bytes: int
    fallback: str
    """Why the switching step was overlapped; empty if it was not."""


def layer_ms(blocking: Sequence[StepPair], layers: int) -> float | None:
    """τ: time to move one layer's state when nothing computes; None where blocking was not measured."""
    return median([pair.switching.start for pair in blocking]) / layers if blocking else None


def pair_fields(pairs: Sequence[StepPair], one_layer_ms: float | None) -> dict[str, Any]:
    """Fields of a prefill row.

    Args:
        pairs: of one direction and mode.
        one_layer_ms: τ, or None if unknown.
    """
    exposed = [pair.switching.total - pair.ready.total for pair in pairs]
    first = [pair.switching.start + sum(pair.switching.waits[:1]) for pair in pairs]
    later = [sum(pair.switching.waits[1:]) for pair in pairs]
    rest = [whole - one - others for whole, one, others in zip(exposed, first, later, strict=True)]
    return {
        "layer_ms": one_layer_ms,
        "ready_ms_p50": median([pair.ready.total for pair in pairs]),
        "step_ms_p50": median([pair.switching.total for pair in pairs]),
        "exposed_ms_p50": median(exposed),
        "exposed_ms_p95": percentile(exposed, 0.95),
        "transfer_ms_p50": median([median(pair.switching.transfers or (0.0,)) for pair in pairs]),
        "first_wait_ms_p50": median(first),
        "later_waits_ms_p50": median(later),
        "interference_ms_p50": median(rest),
        "formula_ms": None if one_layer_ms is None else formula_ms(pairs, one_layer_ms),
        "bytes_per_rank": max(pair.switching.received_bytes for pair in pairs),
        "plan_ms_p50": median([pair.plan_ms for pair in pairs]),
        "reps": len(pairs),
    }


def formula_ms(pairs: Sequence[StepPair], one_layer_ms: float) -> float:
    """(7) of docs/model.md with the measured τ, and c_i of the steps with the state in place."""
    computes = [median(layer) for layer in zip(*(pair.ready.computes for pair in pairs), strict=True)]
    return exposed_with_one_buffer([one_layer_ms] * len(computes), computes)


def window_fields(windows: Sequence[Window]) -> dict[str, Any]:
    """Fields of a decode row."""
    ready = [median(window.after) for window in windows]
    before = [median(window.before) for window in windows]
    exposed = [window.switching - one for window, one in zip(windows, ready, strict=True)]
    fields = {
        "layer_ms": None,
        "ready_ms_p50": median(ready),
        "step_ms_p50": median([window.switching for window in windows]),
        "exposed_ms_p50": median(exposed),
        "exposed_ms_p95": percentile(exposed, 0.95),
        "before_ms_p50": median(before),
        "bytes_per_rank": max(window.received_bytes for window in windows),
        "plan_ms_p50": median([window.plan_ms for window in windows]),
        "executed_as": windows[-1].mode,
        "replayed": min(sum(window.replayed) for window in windows),
        "launched": max(window.replayed.count(False) for window in windows),
        "switching_launched": sum(not window.switching_replayed for window in windows),
        "reps": len(windows),
    }
    records = [window.churn for window in windows if window.churn is not None]
    fields |= _churn_fields(records) if records else {}
    copying = [(window.ahead, one) for window, one in zip(windows, before, strict=True) if window.ahead]
    if not copying:
        return fields
    return fields | {
        "ahead_bytes_per_rank": max(window.ahead_bytes for window in windows),
        "ahead_steps": max(len(ahead) for ahead, _ in copying),
        "ahead_ms_p50": median([median(ahead) for ahead, _ in copying]),
        "ahead_slowdown": median([median(ahead) / one - 1.0 for ahead, one in copying]),
        "ahead_ms_p95": median([percentile(ahead, 0.95) for ahead, _ in copying]),
    }


def _churn_fields(records: Sequence[ChurnRecord]) -> dict[str, Any]:
    last = records[-1]
    return {
        "cancelled": last.cancelled,
        "finished": last.finished,
        "admitted": last.admitted,
        "turned_away": last.turned_away,
        "copied_bytes": max(record.copied_bytes for record in records),
        "invalidated_bytes": max(record.invalidated_bytes for record in records),
        "recopied_bytes": max(record.recopied_bytes for record in records),
        "committed": sum(not record.fallback for record in records),
        "fallback": next((record.fallback for record in records if record.fallback), ""),
    }
