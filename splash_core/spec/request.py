"""What a client asks for, validated: the one request type that all services share."""

from dataclasses import dataclass, field
from enum import IntEnum

from splash_core.errors import InvalidRequest

PRIORITY_S = 5.0
"""Seconds of waiting that outweigh one step of priority: whoever has waited so much longer goes first."""
MOST_PRIORITY = 10


class Purpose(IntEnum):
    """For whom a request is served; the lower one goes first, whatever waits for how long."""

    USER = 0
    """A client's."""
    PROBE = 1
    """The router's own: a fixed prompt whose answer it knows. In no figure of what users get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens of one sequence are chosen. Defaults are OpenAI's."""

    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 means no limit."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    """The draw for a position depends on (seed, position) only: not on batch, layout or rank."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: no logprobs; k: the chosen token's and the k best."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for the prompt's tokens from the second on (echo)."""
    max_tokens: int = 16
    """Tokens to generate at most; 0 only together with `prompt_logprobs`."""
    min_tokens: int = 0
    """No stop token ends the sequence before this many tokens."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Ends the sequence; the model's EOS ids are put here by the gateway unless `ignore_eos`."""
    priority: int = 0
    """How soon it is served: each step up is as if it had come `PRIORITY_S` later. Lower comes first."""
    purpose: Purpose = Purpose.USER
    """Set by the router alone: no field of the HTTP API leads here."""

    def __post_init__(self) -> None:
        self._check_range("temperature", self.temperature, 0.0, 2.0)
        self._check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_range("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        self._check_range("top_k", self.top_k, 0, 1 << 31)
        self._check_range("max_tokens", self.max_tokens, 0, 1 << 31)
        self._check_range("priority", self.priority, -MOST_PRIORITY, MOST_PRIORITY)
        self._check_range("min_tokens", self.min_tokens, 0, max(self.max_tokens, 0))

    @staticmethod
    def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
        # A NaN fails every comparison, hence the negated form.
        if not (low <= value <= high) or (open_low and value == low):
            bracket = "(" if open_low else "["
            raise InvalidRequest(f"{name} must be in {bracket}{low}, {high}], got {value}", param=name)

    def precedence(self, arrived_s: float) -> tuple[Purpose, float]:
        """Smaller goes first: purpose, then when it would have had to come at priority 0."""
        return self.purpose, arrived_s + self.priority * PRIORITY_S

    @property
    def greedy(self) -> bool:
        """True when the most probable token is taken."""
        return self.temperature == 0.0

    @property
    def reads_history(self) -> bool:
        """True when a draw looks at earlier tokens: penalties, or a minimum length to reach."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.min_tokens
        )
