"""What is asked of a simulated deployment, and traces of it in JSON lines.

A trace line is `{"timestamp": ms, "input_length": tokens, "output_length": tokens}`; other keys are ignored,
and a length of 0 counts as 1.
Invariant: requests are numbered from 0 in order of arrival, and one that follows another has a larger number.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from splash_core.errors import ConfigError

_MS = 1e-3
_KEYS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a workload."""

    key: int
    arrival_s: float
    """When it comes; for one that follows another: how long after the other's end."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that it will generate, which nobody but an oracle knows before."""
    max_tokens: int
    """Tokens that it may generate: what schedulers and policies project."""
    follows: int | None = None
    """The request whose end it waits for: the next turn of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests under a name."""

    name: str
    requests: tuple[Request, ...]

    def foreseen(self) -> "Workload":
        """The same with every length known: what an oracle sees."""
        known = tuple(replace(request, max_tokens=request.output_tokens) for request in self.requests)
        return replace(self, requests=known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a trace is made to fit a deployment."""

    lengths: float = 1.0
    """Multiplies prompts and outputs."""
    speed: float = 1.0
    """Multiplies the arrival rate."""
    requests: int | None = None
    """Only so many, from the beginning."""

    def __post_init__(self) -> None:
        for name, value in (("lengths", self.lengths), ("speed", self.speed), ("requests", self.requests)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {value}")

    def tokens(self, count: int) -> int:
        """A length, at least 1."""
        return max(round(count * self.lengths), 1)


def read_trace(lines: Iterable[str], *, name: str, scale: Scale) -> Workload:
    """A workload from a trace.

    Args:
        lines: of the trace.
        name: of the workload, for messages too.
        scale: of lengths, rate and number.

    Raises:
        ConfigError: a line is not what it should be, or there is none; names the line.
    """
    entries: list[tuple[float, int, int]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if scale.requests is not None and len(entries) == scale.requests:
            break
        entries.append(_entry(line, where=f"{name}, line {number}"))
    if not entries:
        raise ConfigError(f"{name}: no request in the trace; every line is one, as a JSON object")
    entries.sort(key=lambda entry: entry[0])
    first = entries[0][0]
    requests = tuple(
        Request(
            key=key,
            arrival_s=(when - first) * _MS / scale.speed,
            prompt_tokens=scale.tokens(prompt),
            output_tokens=scale.tokens(output),
            max_tokens=scale.tokens(output),
        )
        for key, (when, prompt, output) in enumerate(entries)
    )
    return Workload(name=name, requests=requests)


def _entry(line: str, *, where: str) -> tuple[float, int, int]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: a JSON object is required, got {type(values).__name__}")
    entry = cast("dict[str, Any]", values)
    when, *lengths = (_number(entry, key, where) for key in _KEYS)
    for key, length in zip(_KEYS[1:], lengths, strict=True):
        if length != int(length):
            raise ConfigError(f"{where}: {key}: a whole number of tokens is required, got {length!r}")
    prompt, output = map(int, lengths)
    return when, prompt, output


def _number(entry: dict[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {key}: a number from 0 on is required, got {value!r}")
    return value
