"""One check by probes: rounds on one pair of groups until they amount to a finding.

Invariant: a check ends within its deadline, and at once when a group drains, ends or fills up; then it has
found nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.router.correctness_prompts import PromptBook
from services.router.correctness_round import ANSWER_TOKENS, Asking, Questioner
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.dispatch.placement import Pair
from splash_core.errors import Unavailable
from splash_core.policy.correctness import Answer
from splash_core.policy.correctness_notes import Due, GroupMark, PairMark, ProbeFinding, Round, judge
from splash_core.policy.snapshot import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Makes checks."""

    registry: Registry
    questioner: Questioner
    book: PromptBook
    deadline_s: float
    wall: Callable[[], float]

    def mark(self, pair: Pair) -> PairMark | None:
        """The pair as the router knows it; None where it is too small for any prompt."""
        prefill, decode = (self.registry.record(load.address) for load in (pair.prefill, pair.decode))
        abi = None if prefill.description is None else prefill.description.abi
        marks = _group_mark(prefill), _group_mark(decode)
        if abi is None or marks[0] is None or marks[1] is None:
            return None
        ranks = max(0 if record.state is None else record.state.ranks for record in (prefill, decode))
        limits = pair.limits
        prompts = self.book.prompts(
            ranks=ranks,
            page_size=abi.page_size,
            longest=min(limits.max_prompt, limits.max_model_len - ANSWER_TOKENS),
        )
        if not prompts:
            return None
        return PairMark(model=abi.model, dtype=abi.dtype, prompts=prompts, prefill=marks[0], decode=marks[1])

    async def check(self, pair: Pair, due: Due, reference: Round | None) -> ProbeFinding:
        """Ask until it is clear what the answers amount to.

        Args:
            pair: of groups to ask.
            due: why.
            reference: what its answers are compared with; None: they are to become that.

        Raises:
            SplashError: it was given up; says why.
        """
        rounds: tuple[Round, ...] = ()
        try:
            async with asyncio.timeout(self.deadline_s):
                while (finding := judge(due, reference, rounds)) is None:
                    earlier = reference if reference is not None or not rounds else rounds[0]
                    rounds = (*rounds, await self._round(pair, earlier))
                return finding
        except TimeoutError:
            raise Unavailable(f"no answer within {self.deadline_s:g} s") from None

    async def _round(self, pair: Pair, earlier: Round | None) -> Round:
        """Answers, and the groups as they were just before."""
        for load in (pair.prefill, pair.decode):
            await self.registry.refresh(load.address)
        mark = self.mark(pair)
        if mark is None or mark.name != pair.names or (earlier and not mark.asks_as(earlier.mark)):
            raise Unavailable("the groups have changed meanwhile")
        return Round(time_s=self.wall(), mark=mark, answers=await self._asked(pair, mark))

    async def _asked(self, pair: Pair, mark: PairMark) -> tuple[Answer, ...]:
        """The answers, as long as nothing speaks against asking."""
        asking = Asking()
        answers = asyncio.ensure_future(self.questioner.ask(pair, mark.prompts, asking))
        try:
            while not answers.done():
                obstacle = self.questioner.obstacle(pair, mark.prompts, asking)
                if obstacle is not None:
                    raise Unavailable(obstacle)
                await self._changed_or(answers)
            return await answers
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _changed_or(self, answers: "asyncio.Future[tuple[Answer, ...]]") -> None:
        changed = asyncio.ensure_future(self.registry.wait_for_change())
        try:
            await asyncio.wait({answers, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)


def _group_mark(record: GroupRecord) -> GroupMark | None:
    state = record.state
    if state is None:
        return None
    return GroupMark(
        group=record.label,
        phase=Phase(record.phase),
        incarnation=state.incarnation,
        epoch=state.layout_epoch,
        layout=state.layout,
        pinned=state.policy.pinned,
    )
