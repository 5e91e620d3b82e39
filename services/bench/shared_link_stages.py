"""Where the time to the first text went: stages of requests, and whether they met a switch. Pure arithmetic.

    lease      until decode has granted pages and prefill has begun with the prompt
    prefill    the prompt is computed; its pages leave meanwhile
    transfer   what was left of the handoff when the prompt was computed, until decode has acknowledged it
    told       the rest: the first token's way to the client

Invariant: the stages of a request add up to its time to the first text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.bench.clock import median, percentile

STAGES = ("lease", "prefill", "transfer", "told")
_OF_TIMELINE = {"lease": "queue_s", "prefill": "prefill_s", "transfer": "transfer_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request that was answered."""

    ttft_s: float
    stages: Mapping[str, float]
    """Seconds of each of `STAGES`; empty if they are not known."""
    met: bool
    """Whether a switch was under way at some moment between its beginning and its first text."""


def stages_of(timeline: Mapping[str, Any], ttft_s: float) -> dict[str, float]:
    """The stages of a request.

    Args:
        timeline: as the admin port shows it.
        ttft_s: time to its first text, seconds.
    """
    shown = timeline["sequences"][-1]["stages"]
    stages = {name: float(shown[there] or 0.0) for name, there in _OF_TIMELINE.items()}
    return {**stages, "told": ttft_s - sum(stages.values())}


def meets(began: float, ttft_s: float, switched: Sequence[tuple[float, float]]) -> bool:
    """Whether a request waited at some moment within one of the intervals (begin, end)."""
    return any(began < end and begin < began + ttft_s for begin, end in switched)


def first_texts(answered: Sequence[Answered]) -> dict[str, Any]:
    """Fields of a row: percentiles over all requests, over those that met no switch, and mean stages."""
    met = [request for request in answered if request.met]
    alone = [request for request in answered if not request.met]
    return {
        "requests": len(answered),
        "ttft_ms_p50": _ms(answered, 0.5),
        "ttft_ms_p95": _ms(answered, 0.95),
        "met_switch": len(met),
        "ttft_ms_p50_met": _ms(met, 0.5),
        "ttft_ms_p95_not_met": _ms(alone, 0.95),
        "stages_ms": _stages(answered),
        "stages_ms_met": _stages(met),
    }


def _ms(answered: Sequence[Answered], share: float) -> float | None:
    if not answered:
        return None
    times = [request.ttft_s for request in answered]
    return round((median(times) if share == 0.5 else percentile(times, share)) * 1e3, 1)


def _stages(answered: Sequence[Answered]) -> dict[str, float]:
    """Mean of each stage: the stages of a median request are nobody's."""
    known = [request.stages for request in answered if request.stages]
    if not known:
        return {}
    return {name: round(sum(s[name] for s in known) / len(known) * 1e3, 1) for name in STAGES}
