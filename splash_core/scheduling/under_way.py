"""Steps that the ranks have been sent and have not all reported: two at most, so that one is always ready.

A sequence is advanced when its rows are sent, and learns its tokens when they are reported. Invariant
(`check_integrity`): what a step under way may touch is given to nobody else before that step has ended.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, SeqId, StepId
from splash_core.layout.layout import Layout
from splash_core.scheduling.batching import SequenceRows
from splash_core.scheduling.events import SwitchedEvent
from splash_core.scheduling.precopying import AheadRecord
from splash_core.scheduling.sequence import Roster, SeqState
from splash_core.scheduling.step import StepPlan, StepResult

MOST_UNDER_WAY = 2
"""The step that the ranks compute, and the one that they begin with when it has ended."""


@dataclass(frozen=True, slots=True)
class SentStep:
    """One step under way."""

    plan: StepPlan
    rows: tuple[SequenceRows, ...]
    layout_before: Layout
    epoch_before: Epoch
    ahead: AheadRecord

    def switched(self, results: Sequence[StepResult]) -> SwitchedEvent | None:
        """What the step's switch was, if it had one."""
        if self.plan.epoch == self.epoch_before:
            return None
        return SwitchedEvent(
            layout_from=self.layout_before,
            layout_to=self.plan.layout,
            epoch=self.plan.epoch,
            mode=self.plan.mode,
            bytes_received=sum(result.switch_bytes_received for result in results),
            precopied_bytes=self.ahead.bytes_received,
            fallback=self.ahead.fallback,
            step_s=max(result.times.total_s for result in results),
            wait_s=max(result.times.switch_wait_s for result in results),
        )


class StepsUnderWay:
    """In the order in which they were sent, which is the order in which they end."""

    def __init__(self) -> None:
        self._sent: deque[SentStep] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[SentStep]:
        return iter(self._sent)

    @property
    def moving(self) -> bool:
        """True while a manifest is under way: slots that it vacates look free, but may still be read."""
        return any(step.plan.manifest is not None for step in self._sent)

    def switches_to(self, layout: Layout) -> bool:
        """True while a step that switches to a layout is under way: its event is still to come."""
        switches = [step for step in self._sent if step.plan.epoch != step.epoch_before]
        return bool(switches) and switches[-1].plan.layout is layout

    @property
    def last(self) -> StepId:
        """The step sent last; whatever it does not touch, no step under way touches after it has ended.

        Raises:
            InvariantBroken: no step is under way.
        """
        if not self._sent:
            raise InvariantBroken("no step is under way")
        return self._sent[-1].plan.step

    def oldest(self) -> SentStep:
        """The one that ends next.

        Raises:
            InvariantBroken: no step is under way.
        """
        if not self._sent:
            raise InvariantBroken("no step is under way")
        return self._sent[0]

    def send(self, step: SentStep) -> None:
        """The ranks get it: its sequences are where it will leave them, but for the tokens that it draws."""
        self._sent.append(step)
        for entry, rows in zip(step.rows, step.plan.sequences, strict=True):
            entry.sequence.cached += entry.count
            entry.sequence.drawing += rows.sample

    def end(self) -> None:
        """All that the oldest has done has been applied."""
        self._sent.popleft()

    def check_integrity(self, roster: Roster, *, page_size: int) -> None:
        """Prove the invariant of this module.

        Raises:
            InvariantBroken: names the sequence at fault.
        """
        if len(self._sent) > MOST_UNDER_WAY:
            raise InvariantBroken(f"{len(self._sent)} steps are under way")
        drawing: Counter[SeqId] = Counter()
        for step in self._sent:
            for entry, rows in zip(step.rows, step.plan.sequences, strict=True):
                sequence = entry.sequence
                name = f"sequence {sequence.seq}, in step {step.plan.step} under way,"
                if roster.find(sequence.seq) is not sequence or sequence.state is not SeqState.RUNNING:
                    raise InvariantBroken(f"{name} has gone or is {sequence.state}")
                if len(sequence.pages) * page_size < rows.end:
                    raise InvariantBroken(f"{name} has lost pages of its rows")
                drawing[sequence.seq] += rows.sample
        for sequence in roster:
            if sequence.drawing != drawing[sequence.seq]:
                raise InvariantBroken(f"sequence {sequence.seq} waits for {sequence.drawing} tokens")
            if sequence.ends_with is not None and not (self._sent and sequence.ends_with <= self.last):
                raise InvariantBroken(f"sequence {sequence.seq} ends with step {sequence.ends_with}")
