"""What the ranks report after a step, applied to the sequences: progress, tokens, ends."""

from collections.abc import Sequence as Seq

from splash_core.errors import InvariantBroken
from splash_core.ids import SeqId, StepId
from splash_core.scheduling.batching import SequenceRows
from splash_core.scheduling.events import Event, FinishedEvent, FinishReason
from splash_core.scheduling.intake import Intake
from splash_core.scheduling.outputs import accept_token, length_reached, prefilled, record_scores
from splash_core.scheduling.roles import RULES_OF_ROLE, Role
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.scheduling.step import SampledToken, StepPlan, StepResult


class Retirement:
    """Retires steps: every drawn token is accepted, and every end frees its pages.

    A sequence that ends may have a row in the step after, which has been sent already: its pages go when that
    step has ended too, and the token drawn there is dropped. Ids of sequences are never used again, and none
    is preempted while a step is under way, so sequence and step say which token that is.
    """

    def __init__(self, *, roster: Roster, intake: Intake, role: Role) -> None:
        self._roster = roster
        self._intake = intake
        self._rules = RULES_OF_ROLE[role]

    def retire(
        self,
        plan: StepPlan,
        rows: Seq[SequenceRows],
        results: Seq[StepResult],
        *,
        num_ranks: int,
        last: StepId,
    ) -> list[Event]:
        """Apply all ranks' results of a step.

        Args:
            plan: the step.
            rows: its rows, as they were planned.
            results: of the step.
            num_ranks: T.
            last: the step sent last; what ends with this one is held until that one has ended too.

        Raises:
            InvariantBroken: results of another step, of too few or too many ranks, or tokens that nobody
                or everybody drew.
        """
        drawn = _drawn(plan, results, num_ranks)
        for part in (part for result in results for part in result.prompt_logprobs):
            sequence = self._roster.find(part.seq)
            if sequence is not None:
                record_scores(sequence, part)
        events: list[Event] = []
        for entry, step in zip(rows, plan.sequences, strict=True):
            sequence = entry.sequence
            sequence.drawing -= step.sample
            if sequence.ends_with is not None:
                continue  # what it draws after its end is nobody's
            if step.sample:
                events.extend(self._sampled(sequence, drawn[sequence.seq], last))
            elif step.end == len(sequence.tokens):
                events.extend(self._scored(sequence, last))
        for sequence in self._roster:
            if sequence.ends_with is not None and sequence.ends_with <= plan.step:
                self._intake.cancel(sequence)
        return events

    def _sampled(self, sequence: Sequence, drawn: SampledToken, last: StepId) -> list[Event]:
        events: list[Event] = []
        if not sequence.prompt_reported:
            events.append(prefilled(sequence, drawn.token, drawn.logprobs))
            if self._rules.after_prompt is SeqState.HANDOFF:
                self._intake.hold(sequence)
                return events
        told = accept_token(sequence, drawn.token, drawn.logprobs)
        events.append(told)
        end = told if isinstance(told, FinishedEvent) else length_reached(sequence)
        if end is not None:
            sequence.ends_with = last
            if end is not told:
                events.append(end)
        return events

    def _scored(self, sequence: Sequence, last: StepId) -> list[Event]:
        """The prompt was only to be scored."""
        events: list[Event] = [prefilled(sequence, None, None)]
        sequence.ends_with = last
        events.append(
            FinishedEvent(
                seq=sequence.seq,
                request_id=sequence.request_id,
                reason=FinishReason.LENGTH,
                num_generated=0,
            )
        )
        return events


def _drawn(plan: StepPlan, results: Seq[StepResult], num_ranks: int) -> dict[SeqId, SampledToken]:
    ranks = sorted(result.rank for result in results)
    if ranks != list(range(num_ranks)) or any(result.step != plan.step for result in results):
        steps = sorted({result.step for result in results})
        raise InvariantBroken(
            f"step {plan.step} needs one result of each of {num_ranks} ranks; got {ranks} of steps {steps}"
        )
    tokens = [token for result in results for token in result.tokens]
    drawn = {token.seq: token for token in tokens}
    expected = {step.seq for step in plan.sequences if step.sample}
    if len(drawn) != len(tokens) or drawn.keys() != expected:
        raise InvariantBroken(
            f"step {plan.step} draws one token for each of {sorted(expected)}, got {[t.seq for t in tokens]}"
        )
    return drawn
