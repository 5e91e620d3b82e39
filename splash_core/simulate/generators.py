"""Workloads made from a seed: rollouts, sessions, one long among many short, ramps, Poisson arrivals.

Randomness is passed in. Invariant: the same dice and size give the same workload.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from splash_core.errors import ConfigError
from splash_core.simulate.workload import Request, Scale, Workload

MOST_REQUESTS = 10_000_000
"""All of them are in memory."""


class Dice(Protocol):
    """The part of `random.Random` that workloads use."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def expovariate(self, lambd: float, /) -> float:
        """Exponential with rate `lambd`."""
        ...

    def lognormvariate(self, mu: float, sigma: float, /) -> float:
        """Log-normal."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """Uniform in [a, b]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a generated workload is."""

    requests: int = 256
    rate: float = 4.0
    """Mean arrivals per second, where a workload has a rate."""
    scale: Scale = Scale()
    """Of lengths; its other fields are not used."""

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= MOST_REQUESTS or not 0 < self.rate < math.inf:
            raise ConfigError(
                f"requests must be from 1 to {MOST_REQUESTS:,}, and rate above 0 and finite, "
                f"got {self.requests} and {self.rate}"
            )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of request in a mix: share, and medians and spreads of its lengths."""

    share: float
    prompt: int
    output: int
    spread: float = 0.5


_MIX = (_Kind(0.6, 512, 256), _Kind(0.25, 6144, 192), _Kind(0.15, 256, 1024))
"""Chat, documents, writing."""
_ROLLOUT_MEDIAN, _ROLLOUT_SPREAD, _ROLLOUT_MOST = 512, 1.0, 8192
_TURNS, _THINK_S = (3, 8), 2.0
_LONG_PROMPT, _LONG_EVERY = 65_536, 64
_RAMPS = 2
_RAMP_PROMPTS = (256, 16_384)
_PEAK = 3.0


def rl_rollout(dice: Dice, size: Size) -> Workload:
    """All at once, with a long tail: most outputs are short, a few run to the cap; only the cap is known."""
    cap = size.scale.tokens(_ROLLOUT_MOST)
    requests = tuple(
        Request(
            key=key,
            arrival_s=0.0,
            prompt_tokens=size.scale.tokens(dice.randint(128, 512)),
            output_tokens=min(_about(dice, _ROLLOUT_MEDIAN, _ROLLOUT_SPREAD, size.scale), cap),
            max_tokens=cap,
        )
        for key in range(size.requests)
    )
    return Workload(name="rl-rollout", requests=requests)


def agent(dice: Dice, size: Size) -> Workload:
    """Sessions whose context grows: each turn brings all before it, its answer and what a tool returned."""
    requests: list[Request] = []
    start = 0.0
    while len(requests) < size.requests:
        start += dice.expovariate(size.rate / (sum(_TURNS) / 2))
        context, follows = size.scale.tokens(dice.randint(512, 2048)), None
        for _ in range(min(dice.randint(*_TURNS), size.requests - len(requests))):
            output = _about(dice, 192, 0.5, size.scale)
            requests.append(
                Request(
                    key=len(requests),
                    arrival_s=start if follows is None else dice.expovariate(1 / _THINK_S),
                    prompt_tokens=context,
                    output_tokens=output,
                    max_tokens=2 * output,
                    follows=follows,
                )
            )
            follows = requests[-1].key
            context += output + _about(dice, 1024, 0.7, size.scale)
    return Workload(name="agent", requests=tuple(requests))


def long_short(dice: Dice, size: Size) -> Workload:
    """One long prompt among many short ones, again and again."""
    times = _arrivals(dice, size.requests, lambda _share: size.rate)
    requests = tuple(
        Request(
            key=key,
            arrival_s=when,
            prompt_tokens=size.scale.tokens(
                _LONG_PROMPT if key % _LONG_EVERY == 0 else dice.randint(64, 512)
            ),
            output_tokens=(output := _about(dice, 256, 0.5, size.scale)),
            max_tokens=output,
        )
        for key, when in enumerate(times)
    )
    return Workload(name="long-short", requests=requests)


def ramp(dice: Dice, size: Size) -> Workload:
    """Regimes that come and go: the rate swells to three times the least while prompts grow long."""

    def height(share: float) -> float:
        return (1 - math.cos(2 * math.pi * _RAMPS * share)) / 2

    # Over whole ramps, which are even in requests, the mean gap is 1 / (low · √peak).
    low = size.rate / math.sqrt(_PEAK)
    times = _arrivals(dice, size.requests, lambda share: low * (1 + (_PEAK - 1) * height(share)))
    short, long = _RAMP_PROMPTS
    requests: list[Request] = []
    for key, when in enumerate(times):
        middle = short * (long / short) ** height(key / size.requests)
        output = _about(dice, 256, 0.5, size.scale)
        requests.append(
            Request(
                key=key,
                arrival_s=when,
                prompt_tokens=_about(dice, middle, 0.3, size.scale),
                output_tokens=output,
                max_tokens=output,
            )
        )
    return Workload(name="ramp", requests=tuple(requests))


def poisson(dice: Dice, size: Size) -> Workload:
    """Poisson arrivals of a mix: chat, documents to read, texts to write."""
    requests: list[Request] = []
    for key, when in enumerate(_arrivals(dice, size.requests, lambda _share: size.rate)):
        kind = _pick(dice.random())
        output = _about(dice, kind.output, kind.spread, size.scale)
        requests.append(
            Request(
                key=key,
                arrival_s=when,
                prompt_tokens=_about(dice, kind.prompt, kind.spread, size.scale),
                output_tokens=output,
                max_tokens=output,
            )
        )
    return Workload(name="poisson", requests=tuple(requests))


GENERATORS: Mapping[str, Callable[[Dice, Size], Workload]] = MappingProxyType(
    {
        "rl-rollout": rl_rollout,
        "agent": agent,
        "long-short": long_short,
        "ramp": ramp,
        "poisson": poisson,
    }
)


def generate(name: str, dice: Dice, size: Size) -> Workload:
    """The workload of a name.

    Raises:
        ConfigError: no such workload; lists those there are.
    """
    make = GENERATORS.get(name)
    if make is None:
        raise ConfigError(f"workload {name!r} is not known; name one of {', '.join(GENERATORS)}")
    return make(dice, size)


def _about(dice: Dice, median: float, spread: float, scale: Scale) -> int:
    return scale.tokens(round(dice.lognormvariate(math.log(median), spread)))


def _arrivals(dice: Dice, count: int, rate: Callable[[float], float]) -> list[float]:
    times, now = list[float](), 0.0
    for index in range(count):
        now += dice.expovariate(rate(index / count))
        times.append(now)
    return times


def _pick(roll: float) -> _Kind:
    for kind in _MIX[:-1]:
        if roll < kind.share:
            return kind
        roll -= kind.share
    return _MIX[-1]
