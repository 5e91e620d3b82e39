"""Where every slot of a group is, and what a policy may see of it: read-only views."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, GroupId, PageId, RankId
from splash_core.layout.layout import Layout
from splash_core.scheduling.budget import StepBudget
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.leases import OpenLease
from splash_core.scheduling.load_views import LoadViews
from splash_core.scheduling.page_audit import PageAuditData, page_audit
from splash_core.scheduling.pushes import OpenPush, PushBook
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import Roster, SeqState


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


class Views(LoadViews):
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
        super().__init__(roster=roster, holding=residency, present=present, budget=budget, config=config)
        self._residency = residency

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
