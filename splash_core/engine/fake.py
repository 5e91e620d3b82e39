"""An engine without weights: tokens are a function of a sequence's own history.

Services and tests run on it in milliseconds. It is strict where the real engine must trust: it checks that
every plan continues the history it knows and that page tables cover every row, so a scheduler or handoff that
goes wrong fails here by name. Invariant: the token after a history is the same for every batch, chunking,
layout, rank count and phase.
"""

import hashlib
import time
from array import array
from dataclasses import dataclass, field

from splash_core.engine.progress import StepProgress
from splash_core.engine.running import EndedStep
from splash_core.errors import InvariantBroken
from splash_core.ids import RankId, SeqId, StepId
from splash_core.scheduling.step import (
    DrawnToken,
    NewSequence,
    PromptLogprobs,
    SampledToken,
    SequenceStep,
    StepPlan,
    StepResult,
    StepTimes,
    TokenLogprobs,
)
from splash_core.spec.request import SamplingParams


def fake_token(history: tuple[int, ...] | list[int], *, seed: int, vocab: int) -> int:
    """The token that follows `history`."""
    digest = hashlib.sha256(seed.to_bytes(8, "little") + array("q", history).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % vocab


def _logprobs(token: int, count: int) -> TokenLogprobs:
    """Made-up but well-formed: the chosen token first, each next one less probable."""
    return TokenLogprobs(token=token, logprob=-0.5, top=tuple((token + i, -0.5 - i) for i in range(count)))


@dataclass(slots=True, kw_only=True)
class _Mirror:
    """What a rank knows of one sequence."""

    sampling: SamplingParams
    tokens: list[int]
    num_prompt: int
    cached: int = 0
    drew_in: StepId | None = None
    """The last step that drew a token for it."""
    pages: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    to_come: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Of the first pages, where they will be after a switch that copies ahead."""


class FakeEngine:
    """One rank; same interface as the real engine."""

    def __init__(
        self,
        *,
        rank: RankId,
        num_ranks: int,
        vocab: int,
        page_size: int,
        num_layers: int = 1,
        step_s: float = 0.0,
    ) -> None:
        self.progress = StepProgress(num_layers)
        self._num_layers = num_layers
        self._rank = rank
        self._num_ranks = num_ranks
        self._vocab = vocab
        self._page_size = page_size
        self._step_s = step_s
        self._mirrors: dict[SeqId, _Mirror] = {}

    def begin(self, plan: StepPlan) -> EndedStep:
        """As of the real engine; it is done when this returns."""
        return EndedStep(self.step(plan))

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step and report the tokens of the sequences at home here (seq mod T)."""
        began = time.perf_counter()
        self.progress.begin(plan.step)
        for seq in plan.finished:
            self._mirrors.pop(seq, None)
        for new in plan.started:
            self._start(new)
        self._update_tables(plan)
        drawn: list[SampledToken] = []
        scored: list[PromptLogprobs] = []
        for row in plan.sequences:
            self._take_tokens(row)
            self._run(row, drawn, scored)
            if row.sample:
                self._mirror(row.seq).drew_in = plan.step
        for layer in range(self._num_layers):
            self.progress.reached(layer)
            if self._step_s:
                time.sleep(self._step_s / self._num_layers)
        self.progress.end()
        return StepResult(
            step=plan.step,
            rank=self._rank,
            tokens=tuple(drawn),
            prompt_logprobs=tuple(scored),
            times=StepTimes(total_s=time.perf_counter() - began),
        )

    def _update_tables(self, plan: StepPlan) -> None:
        for rows in plan.taken:
            mirror = self._mirror(rows.seq)
            mirror.pages[: rows.num_pages] = mirror.to_come[: rows.num_pages]
        for table in plan.ahead:
            self._mirror(table.seq).to_come[table.first_page :] = table.slots
        for table in plan.tables:
            self._mirror(table.seq).pages[table.first_page :] = table.slots

    def _start(self, new: NewSequence) -> None:
        self._mirrors[new.seq] = _Mirror(
            sampling=new.sampling, tokens=list(new.tokens), num_prompt=new.num_prompt
        )

    def _mirror(self, seq: SeqId) -> _Mirror:
        if seq not in self._mirrors:
            raise InvariantBroken(f"the plan names sequence {seq}, which was never started on this rank")
        return self._mirrors[seq]

    def _take_tokens(self, row: SequenceStep) -> None:
        """Every rank knows what any rank draws here, so what a plan tells of it is checked."""
        mirror = self._mirror(row.seq)
        if isinstance(row.tokens, DrawnToken):
            if row.tokens.step != mirror.drew_in:
                raise InvariantBroken(
                    f"sequence {row.seq} goes on with the token of step {row.tokens.step}, "
                    f"but has last drawn in step {mirror.drew_in}"
                )
            tokens = (self._draw(mirror, row.start),)
        else:
            tokens = row.tokens
        first, told = row.start - len(row.before), (*row.before, *tokens)
        if first > len(mirror.tokens) or mirror.tokens[first : row.end] != list(
            told[: len(mirror.tokens) - first]
        ):
            raise InvariantBroken(
                f"rows {row.start}…{row.end} of sequence {row.seq} do not continue its history"
            )
        mirror.tokens[first : row.end] = told

    def _draw(self, mirror: _Mirror, end: int) -> int:
        """The token after the first `end`."""
        seed = 0 if mirror.sampling.greedy else mirror.sampling.seed
        return fake_token(mirror.tokens[:end], seed=seed, vocab=self._vocab)

    def _run(self, row: SequenceStep, drawn: list[SampledToken], scored: list[PromptLogprobs]) -> None:
        mirror, end = self._mirror(row.seq), row.end
        if -(-end // self._page_size) > len(mirror.pages):
            raise InvariantBroken(
                f"sequence {row.seq} has {len(mirror.pages)} pages of {self._page_size} tokens, "
                f"too few for row {end - 1}"
            )
        mirror.cached = end
        if row.seq % self._num_ranks != self._rank:
            return
        sampling = mirror.sampling
        self._score_prompt(row, mirror, scored)
        if row.sample:
            token = self._draw(mirror, end)
            logprobs = None if sampling.logprobs is None else _logprobs(token, sampling.logprobs)
            drawn.append(SampledToken(seq=row.seq, token=token, logprobs=logprobs))

    def _score_prompt(self, row: SequenceStep, mirror: _Mirror, scored: list[PromptLogprobs]) -> None:
        count = mirror.sampling.prompt_logprobs
        last = min(row.end, mirror.num_prompt - 1)
        if count is None or row.start + 1 > last:
            return
        entries = tuple(
            _logprobs(mirror.tokens[position], count) for position in range(row.start + 1, last + 1)
        )
        scored.append(PromptLogprobs(seq=row.seq, first_position=row.start + 1, entries=entries))
