"""What a step, a landing or a switch means for the world outside: the scheduler's output.

Who tells the first token: a combined group as an ordinary `TokenEvent`; between two groups the *decode*
group, when the handoff lands (`GroupScheduler.landed`). A prefill group only reports it in `PrefilledEvent`.
A stop token is never a `TokenEvent`: it is told once, in `FinishedEvent`.
"""

from dataclasses import dataclass
from enum import StrEnum

from splash_core.ids import Epoch, RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import TokenLogprobs
from splash_core.switch.manifest import Refusal, SwitchMode


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One generated token."""

    seq: SeqId
    request_id: RequestId
    index: int
    """0 for the first output token."""
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvent:
    """The sequence has ended and holds nothing any more."""

    seq: SeqId
    request_id: RequestId
    reason: FinishReason
    num_generated: int
    """Output tokens, a stop token included."""
    stop_token: int | None = None
    logprobs: TokenLogprobs | None = None
    """Of the stop token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefilledEvent:
    """The prompt is computed. In a prefill group its pages stay held until `release` if a token was drawn."""

    seq: SeqId
    request_id: RequestId
    first_token: int | None
    """None when only the prompt was to be scored (max_tokens 0)."""
    first_logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry for each prompt token from the second on, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedEvent:
    """The group runs in another layout; `layout_from == layout_to` answers a request for the present one."""

    layout_from: Layout
    layout_to: Layout
    epoch: Epoch
    mode: SwitchMode
    bytes_received: int
    """In the switching step, from other ranks, summed over ranks."""
    precopied_bytes: int = 0
    """The same, in the ordinary steps before it."""
    fallback: str = ""
    """Why (the rest of) it was overlapped though it was to be precopied."""
    step_s: float = 0.0
    """The switching step's time on its slowest rank."""
    wait_s: float = 0.0
    """Longest time that a rank's computation waited for transfers."""

    def summary(self) -> str:
        """One line for a log."""
        text = (
            f"switched {self.layout_from} → {self.layout_to}, epoch {self.epoch}, {self.mode}: "
            f"{self.bytes_received} bytes moved, {self.precopied_bytes} copied ahead"
        )
        return f"{text}; not precopied: {self.fallback}" if self.fallback else text


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchDeferred:
    """Not now: pages that someone outside still uses are in the way. Ask again at a later step boundary."""

    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRefusedEvent:
    """A switch that was possible when requested was not at the step boundary; nothing has changed."""

    refusal: Refusal
    retry: bool
    """True when it only waits for pages in use outside."""


Event = TokenEvent | FinishedEvent | PrefilledEvent | SwitchedEvent | SwitchRefusedEvent
