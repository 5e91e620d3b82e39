"""What happens to one sequence, in the order in which the gateway hears of it.

PromptScored (only if asked for) → Tokens … → Finished. Invariant: a stream without an error ends with exactly
one Finished; a stream that breaks raises and never pretends to have finished.
"""

from dataclasses import dataclass

from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceJob:
    """One sequence to generate: validated, tokenised, within the context."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScored:
    """Log-probabilities of the prompt's tokens from the second on."""

    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Newly generated tokens; `logprobs` is empty or has one entry a token."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The worker's own end of the sequence: `stop` (a stop token) or `length`."""

    reason: str


SequenceEvent = PromptScored | Tokens | Finished
