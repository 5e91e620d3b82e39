"""A canary as an operator asks for it: what is tried, on which group, for how long, and what must not suffer.

    [canary]
    group = "decode-1"
    period_s = 600
    metric = "tokens_per_s"

    [canary.try]
    margin = 0.02

Invariant: a trial that exists names a group, and at least one key to try.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.policy.keys import Values, plain, read_values
from splash_core.policy.snapshot import Phase

CANARY, TRY = "canary", "try"
_PERIOD_S, _TOLERANCE, _MIN_STEPS = 600.0, 0.02, 100
_LEAST_S, _MOST_S, _MOST_STEPS = 0.1, 1_000_000.0, 1_000_000_000


class Better(Enum):
    """Which values of a metric are the better ones."""

    MORE = 1
    LESS = -1


class Metric(StrEnum):
    """What a canary is judged by: its name, and which values are better."""

    _value_: str
    better: Better

    def __new__(cls, name: str, better: Better) -> "Metric":
        """Of a name, with the direction beside it: no metric is without one."""
        metric = str.__new__(cls, name)
        metric._value_ = name
        metric.better = better
        return metric

    TOKENS_PER_S = "tokens_per_s", Better.MORE
    """Rows computed per second of steps."""
    STEP_MS = "step_ms", Better.LESS
    """Mean time of a step."""
    ITL_MS = "itl_ms", Better.LESS
    """Mean time of a step as the sequences in it see it: between two tokens of one."""
    TTFT_MS = "ttft_ms", Better.LESS
    """Mean time from a prompt's arrival in a prefill group to its first token."""

    @property
    def of_prompts(self) -> bool:
        """Whether it is a mean over prompts, not over steps: then only prefill groups have it."""
        return self is Metric.TTFT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The `[canary]` section."""

    group: str
    values: Values
    """What the group runs with while it is tried, above all other sections."""
    period_s: float = _PERIOD_S
    """How long it is tried; without another group of its phase, how long it is watched before that too."""
    metric: Metric = Metric.TOKENS_PER_S
    tolerance: float = _TOLERANCE
    """Worse than what it is compared with by more than this part: rolled back."""
    min_steps: int = _MIN_STEPS
    """Steps, or prompts where the metric is theirs, that each side must have made; a period goes on until
    then, at most to four times its length."""

    def unmeasured(self, phase: Phase) -> str:
        """Why groups of a phase cannot be judged by the metric, or an empty text."""
        if self.metric.of_prompts and phase is not Phase.PREFILL:
            why = f"{phase} groups draw no first token, so {self.group} has no {self.metric}"
            return f"{why}; give another metric"
        return ""

    def to_plain(self) -> dict[str, Any]:
        """As a document writes it."""
        return {
            "group": self.group,
            "period_s": self.period_s,
            "metric": self.metric.value,
            "tolerance": self.tolerance,
            "min_steps": self.min_steps,
            TRY: {name: plain(value) for name, value in self.values.items()},
        }


_KEYS = ("group", "period_s", "metric", "tolerance", "min_steps", TRY)


def read_trial(table: Mapping[str, Any], *, where: str) -> Trial:
    """The `[canary]` section; raises `ConfigError` that names the key."""
    for name in table:
        if name not in _KEYS:
            raise ConfigError(f"{where}.{name}: unknown key; known: {', '.join(_KEYS)}")
    group = table.get("group")
    if not isinstance(group, str) or not group:
        raise ConfigError(f"{where}.group: the name of one group is required, got {group!r}")
    tried = table.get(TRY)
    if not isinstance(tried, Mapping):
        raise ConfigError(f"{where}.{TRY}: a section [{CANARY}.{TRY}] with the keys to try is required")
    values = read_values(cast("Mapping[str, Any]", tried), where=f"{where}.{TRY}")
    if not values:
        raise ConfigError(f"{where}.{TRY}: names no key to try; add one, or leave [{CANARY}] out")
    metric = table.get("metric", Metric.TOKENS_PER_S)
    if metric not in list(Metric):
        raise ConfigError(f"{where}.metric: {metric!r} is not one of {', '.join(Metric)}")
    steps = table.get("min_steps", _MIN_STEPS)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= _MOST_STEPS:
        raise ConfigError(
            f"{where}.min_steps: a whole number from 1 to {_MOST_STEPS} is required, got {steps!r}"
        )
    return Trial(
        group=group,
        values=values,
        period_s=_number(table, "period_s", default=_PERIOD_S, least=_LEAST_S, most=_MOST_S, where=where),
        metric=Metric(metric),
        tolerance=_number(table, "tolerance", default=_TOLERANCE, most=10.0, where=where),
        min_steps=steps,
    )


def _number(
    table: Mapping[str, Any], name: str, *, default: float, least: float = 0.0, most: float, where: str
) -> float:
    value = table.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise ConfigError(f"{where}.{name}: a number from {least:g} to {most:g} is required, got {value!r}")
    return float(value)
