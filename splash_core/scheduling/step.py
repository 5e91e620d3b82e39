"""What a group runs next, in ids and ints: the contract between a group's leader and its ranks.

The leader owns the page tables of all ranks; a rank executes `StepPlan`s in order and keeps mirrors only.
Every rank receives the identical plan, so every rank issues the same collectives in the same order.
"""

from dataclasses import dataclass

from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.columns import SlotRows
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchManifest, SwitchMode
from splash_core.switch.precopy import PrecopyBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence that the ranks do not know: sent before its first rows, and again after a preemption."""

    seq: SeqId
    sampling: SamplingParams
    tokens: tuple[int, ...]
    """All tokens known so far, prompt first."""
    num_prompt: int
    """How many of `tokens` are the prompt; the rest counts as output for penalties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """Pages `first_page …` of a sequence: replaces the mirror's pages from there on."""

    seq: SeqId
    first_page: int
    slots: SlotRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRows:
    """The first `num_pages` rows to come of a sequence become rows of its table."""

    seq: SeqId
    num_pages: int


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """The one token that `step`, the step before, draws for the same sequence: so far only ranks know it."""

    step: StepId


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """One sequence's rows in a step: tokens at positions `start … end-1`."""

    seq: SeqId
    start: int
    """Position of the first row = tokens whose KV is already cached, or will be by steps under way."""
    tokens: tuple[int, ...] | DrawnToken
    sample: bool
    """True when the last row yields the next token (a decode row, or the last chunk)."""
    before: tuple[int, ...] = ()
    """Tokens right before `start` that mirrors lack, because ranks were given them as `DrawnToken`."""

    @property
    def count(self) -> int:
        """Rows."""
        return 1 if isinstance(self.tokens, DrawnToken) else len(self.tokens)

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of a group. `sequences` may be empty when only a switch is executed or prepared."""

    step: StepId
    epoch: Epoch
    """The layout epoch *after* the manifest, if any, is executed."""
    layout: Layout
    """The layout in which the rows run (the manifest's destination, if any)."""
    sequences: tuple[SequenceStep, ...] = ()
    started: tuple[NewSequence, ...] = ()
    tables: tuple[TableUpdate, ...] = ()
    """Applied before the rows run; after a manifest they hold the destination's slots."""
    finished: tuple[SeqId, ...] = ()
    """Mirrors to drop, before `started` is added: ended or preempted sequences."""
    manifest: SwitchManifest | None = None
    mode: SwitchMode = SwitchMode.OVERLAPPED
    precopy: PrecopyBatch | None = None
    """Copied ahead for a switch to come, beside the rows."""
    ahead: tuple[TableUpdate, ...] = ()
    """Rows to come: to be kept, from `first_page` on, until they are taken, replaced or told anew."""
    taken: tuple[TakenRows, ...] = ()
    """Applied before `tables`."""
    switch_near: bool = False
    """A switch copies ahead and will come soon: what else uses the ranks' links keeps itself short."""
    form: AttentionForm = AttentionForm.ABSORBED
    cp_storage: CpStorage = CpStorage.PASS_Q

    @property
    def num_rows(self) -> int:
        """Query tokens in this step, over all sequences."""
        return sum(sequence.count for sequence in self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability of one token and of the k most probable ones, of the unmodified distribution."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """The token a rank drew for a sequence that is at home there."""

    seq: SeqId
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens `first_position …` of a sequence."""

    seq: SeqId
    first_position: int
    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Wall times of one rank's step, in seconds."""

    total_s: float = 0.0
    """From when the rank could begin with it, so not before the step before had ended, to its end."""
    switch_wait_s: float = 0.0
    """Time that computation waited for a manifest's transfers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one rank reports after a step: the tokens of the rows at home on it."""

    step: StepId
    rank: RankId
    tokens: tuple[SampledToken, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    switch_bytes_received: int = 0
    """Bytes received from other ranks by the manifest's moves."""
    precopy_bytes_received: int = 0
    """Bytes received from other ranks by what was copied ahead."""
    times: StepTimes = StepTimes()
