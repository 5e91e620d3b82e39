"""What happens to one sequence, in the order in which the gateway hears of it.

PromptScored (only if asked for) → Tokens … → Finished. Invariant: a stream without an error ends with exactly
one Finished; a stream that breaks raises and never pretends to have finished.
"""

from dataclasses import dataclass, replace

from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceJob:
    """One sequence to generate: validated, tokenised, within the context."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    open_ended: bool = False
    """True when the client named no `max_tokens`: it takes what the context of its groups leaves."""

    @property
    def required_output(self) -> int:
        """Output that its groups must have room for, tokens."""
        return max(1, self.sampling.min_tokens) if self.open_ended else self.sampling.max_tokens

    def within(self, max_model_len: int) -> "SequenceJob":
        """The job for groups with this context; a client that named its `max_tokens` gets no less."""
        room = max_model_len - len(self.prompt)
        if not self.open_ended or self.sampling.max_tokens <= room:
            return self
        return replace(self, sampling=replace(self.sampling, max_tokens=room))


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
