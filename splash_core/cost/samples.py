"""What a calibration measured, as the fit takes it: single operations, and steps with all repetitions.

Invariant: repetitions that warm up cannot enter: everything reads `StepSample.counted`.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splash_core.cost.links import Collective, CollectiveLoad
from splash_core.cost.load import Load, OwnerLoad, Rows
from splash_core.cost.step_kind import StepKind
from splash_core.errors import ConfigError
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout

_QUARTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One batch's step in one layout."""

    batch: str
    """Equal for the layouts of one batch."""
    phase: str
    layout: Layout
    load: Load
    kind: StepKind
    form: AttentionForm
    storage: CpStorage
    times_s: tuple[float, ...]
    """Of all repetitions, in order."""
    warmup: int
    """Of them, those in front that warmed up."""
    held_out: bool

    @property
    def counted(self) -> tuple[float, ...]:
        """Repetitions that count."""
        return self.times_s[self.warmup :]

    @property
    def seconds(self) -> float:
        """The median of the repetitions that count."""
        return statistics.median(self.counted)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        if len(self.counted) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.counted, n=_QUARTERS, method="inclusive")
        return (high - low) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows times a matrix that no cache holds."""

    flops: float
    read_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """One layer's attention of one rank, with all heads and without projections."""

    work: OwnerLoad
    form: AttentionForm
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective."""

    message: CollectiveLoad
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a step takes beside its layers."""

    layout: Layout
    load: Load
    seconds: float


Operation = Product | Attend | Sent | Outside


def samples_of(rows: Sequence[Mapping[str, Any]], *, num_ranks: int) -> tuple[StepSample, ...]:
    """The whole steps of a calibration's document; those that did not fit are left out.

    Raises:
        ConfigError: a row has no repetition beside those that warm up; names it.
    """
    return tuple(_sample(row, num_ranks=num_ranks) for row in rows if "phase" in row and "reason" not in row)


def operations_of(rows: Sequence[Mapping[str, Any]], *, recorded_bytes: float) -> tuple[Operation, ...]:
    """The single operations of a calibration's document.

    Args:
        rows: of the document.
        recorded_bytes: up to this size steps use what was measured as `recorded`, if it was.
    """
    return tuple(_operation(row) for row in rows if "micro" in row and _used(row, rows, recorded_bytes))


def rows_text(items: Iterable[Rows]) -> str:
    """Requests of one step on one line of a document: `context:rows:owner:samples`, with spaces between."""
    return " ".join(f"{item.context}:{item.rows}:{item.owner}:{item.samples}" for item in items)


def text_rows(text: str) -> tuple[Rows, ...]:
    """What `rows_text` wrote."""
    parts = (tuple(map(int, part.split(":"))) for part in text.split())
    return tuple(Rows(rows, context, owner, samples=samples) for context, rows, owner, samples in parts)


def _sample(row: Mapping[str, Any], *, num_ranks: int) -> StepSample:
    if len(row["ms"]) <= row["warmup"]:
        raise ConfigError(
            f"{row['batch']} in {row['layout']} has no repetition beside {row['warmup']} that warm up; "
            "raise --reps"
        )
    items = text_rows(row["requests"])
    return StepSample(
        batch=row["batch"],
        phase=row["phase"],
        layout=Layout(row["layout"]),
        load=Load.of(items, num_ranks=num_ranks),
        kind=_kind(row, items),
        form=AttentionForm(row["form"]),
        storage=CpStorage(row["storage"]),
        times_s=tuple(ms / 1e3 for ms in row["ms"]),
        warmup=row["warmup"],
        held_out=row["held_out"],
    )


def _kind(row: Mapping[str, Any], items: Sequence[Rows]) -> StepKind:
    if any(item.rows > 1 for item in items):
        return StepKind.PROMPTS
    return StepKind.REPLAYED if "graph_bytes" in row else StepKind.LAUNCHED


def _operation(row: Mapping[str, Any]) -> Operation:
    seconds = row["ms"] / 1e3
    if row["micro"] == "product":
        return Product(flops=row["flops"], read_bytes=row["bytes"], seconds=seconds)
    if row["micro"] == "attend":
        work = OwnerLoad(
            rows=row["rows"],
            pairs=row["pairs"],
            chosen_pairs=row["pairs"],
            keys=row["keys"],
            chosen_keys=row["keys"],
            runs=row["runs"],
        )
        return Attend(work=work, form=AttentionForm(row["form"]), seconds=seconds)
    if row["micro"] == "outside":
        load = Load.of(text_rows(row["requests"]), num_ranks=row["ranks"])
        return Outside(layout=Layout(row["layout"]), load=load, seconds=seconds)
    return Sent(message=CollectiveLoad(Collective(row["micro"]), 1, row["bytes"]), seconds=seconds)


def _used(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], recorded_bytes: float) -> bool:
    """Of collectives over two communicators, each size over the one that steps use."""
    if "comm" not in row or not any(other.get("comm") == "recorded" for other in rows):
        return True
    return (row["comm"] == "recorded") == (row["bytes"] <= recorded_bytes)
