"""What a group does with a sequence: the differences between prefill and decode, as small strategies.

Everything else in this package is the same for all roles.
"""

from enum import StrEnum
from typing import Protocol

from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams


class Role(StrEnum):
    """Which half of serving a group does."""

    PREFILL = "prefill"
    """Computes prompts, draws the first token, holds the pages until they are handed over."""
    DECODE = "decode"
    """Leases pages, receives prompts' KV, generates."""
    COMBINED = "combined"
    """Both in one group: prompts go on to decode where they are."""


class RoleRules(Protocol):
    """The decisions that depend on the role."""

    @property
    def takes_prompts(self) -> bool:
        """True when requests enter by `add`; otherwise by `reserve`."""
        ...

    @property
    def after_prompt(self) -> SeqState:
        """What becomes of a sequence whose first token was drawn here."""
        ...

    def held_tokens(self, num_prompt: int, sampling: SamplingParams) -> int:
        """Most tokens whose KV a sequence may ever hold here: what admission projects."""
        ...

    def max_drawn(self, sampling: SamplingParams) -> int:
        """Output tokens after which a sequence draws no more here."""
        ...


class PrefillRules:
    """A prompt is computed, kept until its pages are pushed, and released by the caller."""

    takes_prompts = True
    after_prompt = SeqState.HANDOFF

    def held_tokens(self, num_prompt: int, sampling: SamplingParams) -> int:
        """The prompt; output grows elsewhere."""
        del sampling
        return num_prompt

    def max_drawn(self, sampling: SamplingParams) -> int:
        """The first, if any."""
        return min(sampling.max_tokens, 1)


class DecodeRules:
    """A sequence arrives with its prompt cached; only preemption makes it compute it again."""

    takes_prompts = False
    after_prompt = SeqState.RUNNING

    def held_tokens(self, num_prompt: int, sampling: SamplingParams) -> int:
        """Prompt and all output."""
        return num_prompt + sampling.max_tokens

    def max_drawn(self, sampling: SamplingParams) -> int:
        """All of them."""
        return sampling.max_tokens


class CombinedRules(DecodeRules):
    """Prefill, then decode, on the same pages."""

    takes_prompts = True


RULES_OF_ROLE: dict[Role, RoleRules] = {
    Role.PREFILL: PrefillRules(),
    Role.DECODE: DecodeRules(),
    Role.COMBINED: CombinedRules(),
}
