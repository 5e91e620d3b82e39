"""Where every slot of a group is, and what a policy may see of it: read-only views."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, GroupId, PageId, RankId
from splash_core.layout.layout import RULES, Layout, shown_layouts
from splash_core.policy.snapshot import LayoutPool, Phase, RunningSequence, Snapshot, WaitingSequence
from splash_core.scheduling.budget import StepBudget, divide_rows
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.leases import OpenLease
from splash_core.scheduling.page_audit import PageAuditData, page_audit
from splash_core.scheduling.pushes import OpenPush, PushBook
from splash_core.scheduling.residency import Present, Residency
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAuditData:
    """Slots of one rank; `slots == free + weights + kv + quarantined + precopied`."""

    rank: RankId
    slots: int
    free: int
    weights: int
    """Slots that hold weights in the present layout, gaps included."""
    kv: int
    quarantined: int
    precopied: int = 0
    """Hold copies that a switch has made ahead of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAuditData:
    """Every slot of a group, and the leases on them."""

    group: GroupId
    role: Role
    layout: Layout
    epoch: Epoch
    pages_held: int
    """Pages that hold slots; 0 after a drain."""
    ranks: tuple[RankAuditData, ...]
    leases: tuple[OpenLease, ...]
    pushes: tuple[OpenPush, ...]
    pages: tuple[PageAuditData, ...]
    """Empty unless asked for."""
    borrowed_pages_used: int
    """Borrowed slots that have held KV pages at least once since start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTokens:
    """Tokens of distinct history in a group."""

    used: int
    total: int
    """What the pool holds in the present layout."""
    projected: int
    """Of everything admitted, prompt and projected output."""


class Views:
    """Builds audits and snapshots from the scheduler's state."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        budget: StepBudget,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present
        self._budget = budget
        self._config = config

    def audit(
        self,
        leases: tuple[OpenLease, ...],
        pushes: tuple[OpenPush, ...],
        *,
        now: float,
        every_page: bool,
    ) -> GroupAuditData:
        """Count every slot; list every page, too, if asked to."""
        table = self._residency.table
        return GroupAuditData(
            group=self._config.group,
            role=self._config.role,
            layout=self._present.layout,
            epoch=self._present.epoch,
            pages_held=table.num_pages,
            ranks=tuple(self._rank(RankId(rank)) for rank in range(table.num_ranks)),
            leases=leases,
            pushes=pushes,
            pages=page_audit(table, self._roster, leases, pushes, now=now) if every_page else (),
            borrowed_pages_used=len(self._residency.borrowed_used),
        )

    def kv_tokens(self) -> KvTokens:
        """Tokens used, offered and promised."""
        active = self._roster.active()
        return KvTokens(
            used=sum(sequence.cached for sequence in active),
            total=self._residency.capacity(self._present.layout).distinct_tokens,
            projected=sum(sequence.held_tokens for sequence in active),
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
            num_ranks=self._residency.num_ranks,
            page_size=self._residency.table.arena.page_size,
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
            switch_pending=switch_pending,
        )

    def _rank(self, rank: RankId) -> RankAuditData:
        table, arena = self._residency.table, self._residency.table.arena
        quarantined, precopied = table.quarantined(rank), table.ahead.count(rank)
        usable = self._residency.capacity(self._present.layout).pages
        used = table.pools[rank].num_used
        return RankAuditData(
            rank=rank,
            slots=arena.num_slots,
            free=usable - used,
            weights=arena.num_slots - usable,
            kv=used - quarantined - precopied,
            quarantined=quarantined,
            precopied=precopied,
        )

    def _running(self, sequences: Seq[Sequence]) -> tuple[RunningSequence, ...]:
        prompts = [sequence for sequence in sequences if not sequence.decoding]
        budget = max(self._budget.rows - (len(sequences) - len(prompts)), 1)
        lanes = [(self._residency.placement(sequence).owners, sequence.remaining) for sequence in prompts]
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
            prompt_tokens=len(sequence.tokens),
            projected_output=max(sequence.held_tokens - len(sequence.tokens), 0),
        )

    def _pool(self, layout: Layout, infeasible: Mapping[Layout, str]) -> LayoutPool:
        table = self._residency.table
        if layout not in self._config.layouts:
            return LayoutPool(feasible=False, reason=infeasible.get(layout, "not among the group's layouts"))
        free = min(
            table.free_slots(RankId(rank), lent=RULES[layout].lends) for rank in range(table.num_ranks)
        )
        return LayoutPool(
            feasible=True,
            total_tokens=self._residency.capacity(layout).rank_tokens,
            free_tokens=free * table.arena.page_size,
        )

    def _owner_tokens(self) -> tuple[int, ...]:
        tokens = [0] * self._residency.num_ranks
        for sequence in self._roster.active():
            for rank, pages in enumerate(self._residency.copies_per_rank(sequence)):
                tokens[rank] += pages * self._residency.table.arena.page_size
        return tuple(tokens)


def check_integrity(roster: Roster, residency: Residency, quarantine: Seq[PageId], pushes: PushBook) -> None:
    """Prove that pages, pins and states agree.

    Raises:
        InvariantBroken: names the sequence or page at fault.
    """
    table = residency.table
    table.check_integrity()
    known: set[PageId] = {*quarantine, *pushes.left_over}
    pushed = pushes.pages
    for sequence in roster:
        name = f"sequence {sequence.seq} ({sequence.state})"
        if sequence.holds_pages is False and (sequence.pages or sequence.cached):
            raise InvariantBroken(f"{name} waits but holds {len(sequence.pages)} pages")
        room = len(sequence.pages) * table.arena.page_size
        if not sequence.cached <= min(sequence.length, room):
            raise InvariantBroken(f"{name}: {sequence.cached} tokens cached in room for {room}")
        placement = residency.placement(sequence)
        for index, page in enumerate(sequence.pages):
            if page in known:
                raise InvariantBroken(f"{name}: page {page} has another user")
            known.add(page)
            pinned = sequence.state in (SeqState.LEASED, SeqState.HANDOFF) or page in pushed
            if table.is_pinned(page) is not pinned:
                raise InvariantBroken(f"{name}: page {page} is {'not ' if pinned else ''}pinned")
            in_place = table.ranks(page) == tuple(sorted(placement.ranks_of_page(index)))
            if sequence.state is SeqState.RUNNING and not in_place:
                raise InvariantBroken(f"{name}: page {index} lies on ranks {table.ranks(page)}")
    stray = set(table.pages) ^ known
    if stray:
        raise InvariantBroken(f"pages without a user, or users without a page: {sorted(stray)}")
