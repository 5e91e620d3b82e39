"""What a group's load is: for the router in tokens, for a layout policy as a snapshot."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.ids import RankId
from splash_core.layout.layout import Layout, shown_layouts
from splash_core.policy.snapshot import LayoutPool, Phase, RunningSequence, Snapshot, WaitingSequence
from splash_core.scheduling.budget import StepBudget, divide_rows
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Holding, Present
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.spec.request import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTokens:
    """Tokens of distinct history in a group."""

    used: int
    total: int
    """What the pool holds in the present layout."""
    projected: int
    """Of everything admitted, prompt and projected output."""
    waiting: int
    """Of users' sequences that are not admitted: what their prompts come to hold."""
    waiting_sequences: int
    """How many those are."""


class LoadViews:
    """Builds snapshots from the scheduler's state."""

    def __init__(
        self,
        *,
        roster: Roster,
        holding: Holding,
        present: Present,
        budget: StepBudget,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._budget = budget
        self._holding = holding
        self._present = present
        self._config = config

    def kv_tokens(self) -> KvTokens:
        """Tokens used, offered and promised."""
        active = self._roster.active()
        waiting = [
            sequence.length
            for sequence in self._roster.within(SeqState.WAITING)
            if sequence.sampling.purpose is Purpose.USER
        ]
        return KvTokens(
            used=sum(sequence.cached for sequence in active),
            total=self._holding.capacity(self._present.layout).distinct_tokens,
            projected=sum(sequence.held_tokens for sequence in active),
            waiting=sum(waiting),
            waiting_sequences=len(waiting),
        )

    def snapshot(
        self,
        *,
        time_s: float,
        queued: Seq[WaitingSequence],
        infeasible: Mapping[Layout, str],
        switch_pending: bool,
        landing_bytes: int = 0,
    ) -> Snapshot:
        """What a policy may see.

        Args:
            time_s: now.
            queued: requests that wait outside the scheduler (a decode leader's queue).
            infeasible: why each layout that the group may not run is not feasible.
            switch_pending: a switch is scheduled.
            landing_bytes: of handoffs that come into the group.
        """
        running = self._roster.within(SeqState.RUNNING, SeqState.LANDED)
        waiting = [self._waiting(sequence) for sequence in self._roster.within(SeqState.WAITING)]
        computing = any(not sequence.decoding for sequence in running) or bool(waiting)
        prefill = self._config.role is not Role.DECODE and (self._config.role is Role.PREFILL or computing)
        return Snapshot(
            time_s=time_s,
            group=self._config.group,
            phase=Phase.PREFILL if prefill else Phase.DECODE,
            layout=self._present.layout,
            num_ranks=self._holding.num_ranks,
            page_size=self._holding.page_size,
            chunk_tokens=self._config.chunk_tokens,
            running=self._running(running),
            waiting=(*waiting, *queued),
            pools={
                layout: self._pool(layout, infeasible)
                for layout in shown_layouts((*self._config.layouts, *infeasible))
            },
            owner_tokens=self._owner_tokens(),
            pending_handoff_bytes=landing_bytes,
            precopy_bytes_per_step=self._config.precopy_bytes_per_step,
            staging_bytes=self._config.staging_bytes,
            recorded_rows=self._config.recorded_rows,
            switch_pending=switch_pending,
        )

    def _running(self, sequences: Seq[Sequence]) -> tuple[RunningSequence, ...]:
        prompts = [sequence for sequence in sequences if not sequence.decoding]
        budget = max(self._budget.rows - (len(sequences) - len(prompts)), 1)
        lanes = [(self._holding.placement(sequence).owners, sequence.remaining) for sequence in prompts]
        planned = divide_rows(lanes, budget)
        rows = {sequence.seq: count for sequence, count in zip(prompts, planned, strict=True)}
        return tuple(
            RunningSequence(
                context_tokens=sequence.cached,
                step_rows=rows.get(sequence.seq, 1),
                remaining_prompt=0 if sequence.decoding else sequence.remaining,
                projected_output=max(sequence.held_tokens - sequence.length, 0),
                owner=sequence.owner,
            )
            for sequence in sequences
        )

    def _waiting(self, sequence: Sequence) -> WaitingSequence:
        return WaitingSequence(
            prompt_tokens=sequence.length,
            projected_output=max(sequence.held_tokens - sequence.length, 0),
        )

    def _pool(self, layout: Layout, infeasible: Mapping[Layout, str]) -> LayoutPool:
        if layout not in self._config.layouts:
            return LayoutPool(feasible=False, reason=infeasible.get(layout, "not among the group's layouts"))
        holding = self._holding
        free = min(holding.free_in(layout, RankId(rank)) for rank in range(holding.num_ranks))
        return LayoutPool(
            feasible=True,
            total_tokens=holding.capacity(layout).rank_tokens,
            free_tokens=free * holding.page_size,
        )

    def _owner_tokens(self) -> tuple[int, ...]:
        tokens = [0] * self._holding.num_ranks
        for sequence in self._roster.active():
            for rank, pages in enumerate(self._holding.copies_per_rank(sequence)):
                tokens[rank] += pages * self._holding.page_size
        return tuple(tokens)
