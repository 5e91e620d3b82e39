"""What the serving benchmark sends, and how rates are read off it. The same token ids go to both systems.

Decode rate: tokens of all streams inside the window in which all of them decode, over that window. Prefill
rate: prompt tokens over the time to the first token.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from splash_core.errors import ConfigError
from splash_core.layout.layout import STANDARD_LAYOUTS

FIXED = STANDARD_LAYOUTS
POLICY = "policy"
"""Beside fixed layouts: whatever the policy chooses."""
LOWEST_ID, HIGHEST_ID = 1000, 40_000
"""Ordinary tokens of the demo model's vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """Sizes of the benchmark."""

    decode_prompt: int = 32
    decode_tokens: int = 64
    batches: tuple[int, ...] = (1, 8)
    prefill_prompt: int = 1000
    reps: int = 3


def rate_name(what: str, batch: int) -> str:
    """A key of the baseline's rates."""
    return f"{what}-{batch}"


def prompt_ids(length: int, seed: int) -> list[int]:
    """A prompt of random ordinary tokens."""
    return np.random.default_rng(seed).integers(LOWEST_ID, HIGHEST_ID, length).tolist()


def common_window_rate(arrivals: Sequence[Sequence[float]], *, flag: str = "--decode-tokens") -> float:
    """Tokens per second while all streams decode.

    Args:
        arrivals: for each stream, when each of its tokens arrived, seconds.
        flag: what says how many tokens each of them generates.

    Raises:
        ConfigError: they never all do.
    """
    begin = max(times[0] for times in arrivals)
    end = min(times[-1] for times in arrivals)
    if end <= begin:
        raise ConfigError(f"{len(arrivals)} streams were never all decoding at the same time; raise {flag}")
    return sum(sum(begin < time <= end for time in times) for times in arrivals) / (end - begin)


def median_of(reps: int, measure: Callable[[int], float]) -> float:
    """The median of `measure(0) … measure(reps - 1)`, after one run that is not counted."""
    measure(reps)
    return statistics.median(measure(rep) for rep in range(reps))
