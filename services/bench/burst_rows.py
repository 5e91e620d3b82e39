"""What follows from bursts: rates from end to end, and the policy beside fixed layouts. Arithmetic only."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from services.bench.rollout_rows import log_ratios, upper_bound
from services.bench.settings import words
from services.bench.workload import POLICY
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase
from splash_core.settings_base import parse_size

Row = Mapping[str, Any]
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Burst:
    """Equal requests that come at one moment."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """B · (L_in + L_out)."""
        return self.requests * (self.prompt_tokens + self.output_tokens)

    def __str__(self) -> str:
        return f"{self.requests}:{self.prompt_tokens}:{self.output_tokens}"


@dataclass(frozen=True, slots=True)
class Arm:
    """Layouts of both phases; without any, the policy's."""

    layouts: Mapping[Phase, Layout]

    def __str__(self) -> str:
        return "/".join(self.layouts.values()) or POLICY


def bursts_of(text: str) -> tuple[Burst, ...]:
    """`16:4K:128` as numbers, a list.

    Raises:
        ConfigError: one is malformed.
    """
    return _each(text, _burst, flag="--bursts", example="16:4K:128")


def arms_of(text: str) -> tuple[Arm, ...]:
    """`TP/DP,policy` as arms, a list.

    Raises:
        ConfigError: one is malformed.
    """
    return _each(text, _arm, flag="--arms", example="TP/DP")


def _each(text: str, read: Callable[[str], _Read], *, flag: str, example: str) -> tuple[_Read, ...]:
    found = tuple(map(read, words(text)))
    if not found:
        raise ConfigError(f"{flag} needs one at least, for example {example}")
    return found


def concluded(rows: Sequence[Row]) -> dict[str, Any] | None:
    """The policy beside the best uniform arm and beside DP, over runs in which all of them ran; or nothing.

    An arm's time is the sum over its bursts, a ratio that of a fixed arm's time to the policy's.
    """
    spans = spans_by_arm(rows)
    fixed = {arm: times for arm, times in spans.items() if arm != POLICY and len(set(arm.split("/"))) == 1}
    if POLICY not in spans or not fixed:
        return None
    runs = min(len(times) for times in (*fixed.values(), spans[POLICY]))
    if not runs:
        return None
    best = min(fixed, key=lambda arm: statistics.mean(fixed[arm][:runs]))
    return {"what": "policy", "best": best, "runs": runs} | {
        f"{name}_{key}": value
        for name, arm in (("best", best), ("dp", "DP/DP"))
        if arm in fixed
        for key, value in _lead(fixed[arm][:runs], spans[POLICY][:runs]).items()
    }


def spans_by_arm(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Seconds of each arm's bursts together, by run."""
    spans: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["what"] == "burst":
            of_arm = spans.setdefault(row["arm"], {})
            of_arm[row["run"]] = of_arm.get(row["run"], 0.0) + row["seconds"]
    return {arm: [of_arm[run] for run in sorted(of_arm)] for arm, of_arm in spans.items()}


def _lead(fixed: Sequence[float], policy: Sequence[float]) -> dict[str, float | None]:
    logs = log_ratios(policy, fixed)
    bound = upper_bound(logs)
    return {
        "speedup": round(math.exp(-statistics.mean(logs)), 4),
        "speedup_at_least": None if bound is None else round(1 / bound, 4),
    }


def _burst(word: str) -> Burst:
    try:
        numbers = [parse_size(part) for part in word.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or min(numbers) < 1:
        raise ConfigError(f"--bursts: {word!r} is not requests:prompt tokens:generated tokens, as 16:4K:128")
    return Burst(*numbers)


def _arm(word: str) -> Arm:
    if word == POLICY:
        return Arm({})
    names = word.upper().split("/")
    if len(names) != len(Phase) or not set(names) <= set(Layout):
        raise ConfigError(f"--arms: {word!r} is neither {POLICY} nor a pair of layouts like TP/DP")
    return Arm(dict(zip((Phase.PREFILL, Phase.DECODE), map(Layout, names), strict=True)))
