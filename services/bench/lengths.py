"""How long the requests of a benchmark may become: usual lengths, and what the model's positions allow.

Invariant: settings that passed `check_lengths` never lead a step beyond the model's last position; that is
asked before any rank starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.bench.calibrate_settings import CalibrateSettings
from services.bench.settings import (
    AHEAD_ROOM,
    AUTO,
    AgreementSettings,
    BenchSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
    sizes,
    words,
)
from splash_core.errors import Infeasible
from splash_core.spec.model import ModelSpec

_SHORT = "1K"
"""Where the model holds none of the usual lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Longest:
    """The longest request that settings lead to."""

    flag: str
    value: int
    more: int = 0
    """Positions that steps take beyond it."""
    less: str = ""
    """What lowers `more`."""


def with_usual_lengths(settings: BenchSettings, spec: ModelSpec) -> BenchSettings:
    """Settings whose `auto` lengths are decided: the usual ones that the model holds."""
    if isinstance(settings, PrimitivesSettings) and settings.context == AUTO:
        return replace(settings, context=_held("16K,64K,128K", spec))
    if isinstance(settings, SwitchSettings) and settings.context == AUTO:
        return replace(settings, context=_held("16K", spec))
    if isinstance(settings, SweepSettings) and settings.input == AUTO:
        return replace(settings, input=_held("1K,4K,16K", spec))
    return settings


def check_lengths(settings: BenchSettings, spec: ModelSpec) -> None:
    """Return if the model has a position for every token of every step; `settings` are resolved.

    Raises:
        ConfigError: a list of numbers is none.
        Infeasible: it has not; names the longest that it holds.
    """
    longest, most = _longest(settings), spec.max_positions
    if longest is None or longest.value + longest.more <= most:
        return
    room = most - longest.more
    beyond = f", of which steps take {longest.more:,}" if longest.more else ""
    raise Infeasible(
        f"{longest.flag} {longest.value}: {spec.name} has {most:,} positions{beyond}",
        nearest=f"{longest.flag} {room}" if room > 0 else longest.less,
    )


def _longest(settings: BenchSettings) -> _Longest | None:
    match settings:
        case PrimitivesSettings():
            return _Longest(flag="--context", value=max(sizes(settings.context, "--context")))
        case SwitchSettings():
            return _of_switches(settings)
        case SweepSettings():
            decode = settings.steps + settings.warmup + 1 if "decode" in words(settings.phase) else 0
            value = max(sizes(settings.input, "--input"))
            return _Longest(flag="--input", value=value, more=decode, less="fewer --steps")
        case AgreementSettings():
            steps = -(-settings.positions // settings.batch)
            return _Longest(flag="--prompt", value=settings.prompt, more=steps, less="fewer --positions")
        case CapacitySettings() if settings.device == "cuda":
            return _Longest(flag="--chunk-tokens", value=settings.chunk_tokens)
        case CalibrateSettings():
            return _of_calibration(settings)
        case _:
            return None


def _of_switches(settings: SwitchSettings) -> _Longest:
    context = max(sizes(settings.context, "--context"))
    if settings.phase == "decode":
        steps = 2 * settings.ordinary + AHEAD_ROOM
        return _Longest(flag="--context", value=context, more=steps, less="fewer --ordinary steps")
    rows = _rows_each(sizes(settings.chunk, "--chunk"), sizes(settings.batch, "--batch"))
    return _Longest(flag="--context", value=context, more=rows, less="a smaller --chunk")


def _of_calibration(settings: CalibrateSettings) -> _Longest:
    rows = _rows_each(sizes(settings.rows, "--rows"), sizes(settings.prompts, "--prompts"))
    # A batch that would cache more is left out of the grid.
    rows = min(rows, settings.most_tokens)
    context = min(max(sizes(settings.context, "--context")), settings.most_tokens - rows)
    return _Longest(flag="--context", value=context, more=rows, less="fewer --rows")


def _rows_each(rows: Sequence[int], requests: Sequence[int]) -> int:
    return -(-max(rows) // min(requests))


def _held(usual: str, spec: ModelSpec) -> str:
    return ",".join(size for size in words(usual) if sizes(size, "")[0] < spec.max_positions) or _SHORT
