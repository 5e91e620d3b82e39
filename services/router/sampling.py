"""The sampling fields of a request as `SamplingParams`.

Invariant: null is the default of every field, and all token ids are within the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.router.schemas import Body
from splash_core.errors import InvalidRequest
from splash_core.spec.request import SamplingParams

_SEED_BITS = 63
_MAX_STOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the two endpoints say in different fields."""

    max_tokens: int | None
    logprobs: int | None
    prompt_field: str
    echo: bool


class SamplingReader:
    """Reads sampling fields for one model."""

    def __init__(self, *, vocab_size: int, eos_ids: Sequence[int], random_seed: Callable[[], int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._random_seed = random_seed

    def read(self, body: Body, wanted: Wanted, *, max_tokens: int, choice: int) -> SamplingParams:
        """The parameters of one choice.

        Args:
            body: the request.
            wanted: what its endpoint spells differently.
            max_tokens: the tokens that fit, or were asked for.
            choice: index of the choice among the prompt's own; moves the seed.
        """
        if wanted.max_tokens is not None and wanted.max_tokens < (0 if wanted.echo else 1):
            raise InvalidRequest(
                f"max_tokens must be at least 1, got {wanted.max_tokens}", param="max_tokens"
            )
        ends = () if body.ignore_eos else self._eos_ids
        given = self.check_ids(body.stop_token_ids or (), "stop_token_ids")
        seed = self._random_seed() if body.seed is None else body.seed + choice
        return SamplingParams(
            temperature=_or(body.temperature, 1.0),
            top_k=_top_k(body.top_k),
            top_p=_or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            seed=seed % (1 << _SEED_BITS),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            logit_bias=self._logit_bias(body.logit_bias),
            logprobs=wanted.logprobs,
            prompt_logprobs=wanted.logprobs if wanted.echo else None,
            max_tokens=max_tokens,
            min_tokens=body.min_tokens or 0,
            stop_token_ids=tuple(sorted({*ends, *given})),
            priority=body.priority or 0,
        )

    def _logit_bias(self, bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
        pairs: list[tuple[int, float]] = []
        for key, value in (bias or {}).items():
            if not key.isdecimal() or int(key) >= self._vocab_size:
                raise InvalidRequest(
                    f"logit_bias names token {key!r}; ids are 0 to {self._vocab_size - 1}",
                    param="logit_bias",
                )
            if not -100.0 <= value <= 100.0:
                raise InvalidRequest(
                    f"logit_bias of token {key} must be -100 to 100, got {value}", param="logit_bias"
                )
            pairs.append((int(key), value))
        return tuple(sorted(pairs))

    def check_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """Token ids from a client: each in the vocabulary."""
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest(
                    f"{param} has token id {token}; ids are 0 to {self._vocab_size - 1}",
                    param=param,
                )
        return tuple(ids)


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request; none may be empty."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings; at most {_MAX_STOPS} are allowed", param="stop")
    if any(not text for text in stops):
        raise InvalidRequest("stop must not contain an empty string", param="stop")
    return stops


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _top_k(given: int | None) -> int:
    if given is not None and given < -1:
        raise InvalidRequest(f"top_k must be at least 1, or 0 or -1 for no limit, got {given}", param="top_k")
    # -1 is how SGLang and vLLM clients say "no limit".
    return 0 if given in (None, -1) else given
