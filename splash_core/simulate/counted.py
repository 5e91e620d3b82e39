"""A group's scheduler on counted pages, which may run many decode steps of one shape at once.

Between two steps in which a row ends, a prompt lands, somebody is admitted or a layout changes, decode rows
only count up: whoever waits for room still finds none, for free pages fall as fast as pages fall due. So
such steps are one. Batching, admission, owners and snapshots are the product's own code.
"""

from collections.abc import Sequence as Seq

from splash_core.errors import InvariantBroken
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.batching import Batcher
from splash_core.scheduling.budget import StepBudget
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.load_views import LoadViews
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.roles import RULES_OF_ROLE
from splash_core.scheduling.sequence import Roster, SeqState
from splash_core.simulate.counts import CountedHolding, CountedSequence, new_sequence
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.machine import BatchRow, Ended, Promised, StepRun
from splash_core.simulate.placing import Placing
from splash_core.simulate.switcher import CountedSwitcher
from splash_core.simulate.workload import Request
from splash_core.switch.manifest import SwitchMode


class _NoPushes:
    """Pages leave when their prompt is done; none is left over."""

    left_over = ()


class CountedMachine:
    """One group. See `Machine`."""

    def __init__(self, fleet: Fleet, config: SchedulerConfig, layout: Layout) -> None:
        self._fleet = fleet
        self._config = config
        self._rules = RULES_OF_ROLE[config.role]
        self._roster = Roster()
        self._present = Present(layout=layout)
        self._counts = CountedHolding(roster=self._roster, present=self._present, capacities=fleet.capacities)
        roster, counts, present = self._roster, self._counts, self._present
        self._placing = Placing(roster=roster, counts=counts, present=present)
        self._switcher = CountedSwitcher(
            roster=roster, counts=counts, present=present, placing=self._placing, fleet=fleet, config=config
        )
        self._admission = Admission(
            roster=roster, residency=counts, present=present, pushes=_NoPushes(), config=config
        )
        self._budget = StepBudget(config.chunk_tokens)
        self._batcher = Batcher(
            roster=roster, residency=counts, admission=self._admission, budget=self._budget, config=config
        )
        self._views = LoadViews(
            roster=roster, holding=counts, present=present, budget=self._budget, config=config
        )
        self._by_key: dict[int, CountedSequence] = {}
        self._rows: list[CountedSequence] = []
        self._samples: list[CountedSequence] = []
        self._moving = False
        self._promised: Promised | None = None
        """Kept until somebody comes, goes, starts or is preempted, or the layout changes."""

    @property
    def layout(self) -> Layout:
        """Of the step under way, or of the next one."""
        return self._present.layout

    @property
    def live(self) -> int:
        """Requests that the scheduler knows."""
        return len(self._roster)

    @property
    def pages_held(self) -> int:
        """Page copies on all ranks; 0 after a drain."""
        return sum(self._counts.used)

    def add(self, request: Request) -> None:
        """Queue a prompt to be computed here."""
        self._enter(self._new(request))

    def reserve(self, request: Request) -> bool:
        """Promise pages to a prompt that is computed elsewhere; False: no room now."""
        if self._roster.within(SeqState.WAITING):
            return False
        if len(self._roster.active()) >= self._config.max_running:
            return False
        sequence = self._new(request)
        owner = self._admission.choose_owner(sequence, landing=True)
        self._counts.wanted_ordinary = {}
        if owner is None:
            return False
        sequence.owner, sequence.state, sequence.prompt_reported = owner, SeqState.LEASED, True
        pages = self._counts.pages_for(self._admission.first_tokens(sequence))
        self._counts.take(sequence, self._admission.landing_placement(owner, sequence.rotation), pages)
        self._enter(sequence)
        return True

    def land(self, key: int) -> bool:
        """A promised prompt has arrived, with its first token; True when that was the last one too."""
        sequence = self._by_key[key]
        sequence.state, sequence.cached = SeqState.LANDED, sequence.num_prompt
        sequence.known += 1
        if sequence.num_generated < sequence.output:
            return False
        self._drop(sequence)
        return True

    def release(self, key: int) -> None:
        """A computed prompt has left."""
        self._drop(self._by_key[key])

    def snapshot(self, now: float, queued: Seq[WaitingSequence]) -> Snapshot:
        """What a policy may see at a step boundary."""
        return self._views.snapshot(
            time_s=now,
            queued=queued,
            infeasible=self._fleet.infeasible,
            switch_pending=self._switcher.copying,
        )

    def switch(self, layout: Layout, mode: SwitchMode) -> str:
        """Change layout with the next step, or once most is copied ahead; why not now, or an empty text."""
        if mode is SwitchMode.PRECOPIED:
            self._switcher.copy_ahead(layout)
            return ""
        if not self._switcher.switch(layout):
            pages = self._counts.capacity(layout).pages
            return f"{self.layout} → {layout}: not all histories fit into pools of {pages} pages"
        self._moving, self._promised = True, None
        return ""

    def leave_room(self, link: LinkView, pending_bytes: int) -> None:
        """The next step's copies ahead leave so many bytes of handoffs, of all ranks, their part of links."""
        self._switcher.leave_room(link, pending_bytes)

    def limit_chunk(self, rows: int | None) -> None:
        """Take at most so many rows while prompts are computed, from the next step on; None: the most."""
        self._budget.limit(rows)

    def begin(self, most: int) -> StepRun | None:
        """The next step, or up to `most` of one shape; None when there is nothing to run."""
        waiting = self._roster.within(SeqState.WAITING)
        rest = self._switcher.at_boundary()
        if rest is not None:
            self._moving, self._promised = True, None
        relocated = 0 if self._moving else self._placing.relocate()
        chosen = self._batcher.fill()
        ahead = self._switcher.next_step()
        if waiting != self._roster.within(SeqState.WAITING):
            self._promised = None
        moves = self._moving = self._moving or relocated > 0
        self._counts.rest()
        if not chosen and not moves and ahead is None:
            return None
        rows: list[BatchRow] = []
        steady, self._samples = True, []
        for entry in chosen:
            sequence = entry.sequence
            assert isinstance(sequence, CountedSequence)
            sequence.known_to_ranks = True
            steady = steady and sequence.decoding
            samples = int(sequence.cached + entry.count == sequence.length)
            rows.append(BatchRow(sequence.key, entry.count, sequence.cached, sequence.owner, samples))
            sequence.cached += entry.count
            sequence.drawing += samples
            if samples:
                self._samples.append(sequence)
        steady = steady and not moves and not self._switcher.copying
        if not steady or len(rows) < len(self._roster.within(SeqState.RUNNING)):
            return StepRun(tuple(rows), 1, moves, relocated, ahead, rest)
        ends = min(sequence.output - sequence.num_generated for sequence in self._samples)
        return StepRun(tuple(rows), 1 + self.fitting(min(most, ends, self._same_reach()) - 1), moves)

    def advance(self, steps: int) -> None:
        """So many more of the steps under way have ended; the one after them is under way."""
        for sequence in self._samples:
            sequence.known += steps
            sequence.cached += steps
            self._counts.grow(sequence, sequence.cached)

    def fitting(self, steps: int) -> int:
        """Of so many steps after the one under way, those whose pages are free."""
        while steps > 0 and not self._room_for(steps):
            steps //= 2
        return steps

    def complete(self, steps: int) -> Ended:
        """The last `steps` steps have ended."""
        if steps > 1:
            self.advance(steps - 1)
        ended = Ended()
        for sequence in self._samples:
            sequence.drawing = 0
            sequence.known += 1
            self._sampled(sequence, ended)
        self._samples, self._moving = [], False
        self._counts.end_rest()
        return ended

    def promised(self) -> Promised:
        """What the router asks for."""
        if self._promised is None:
            tokens = self._views.kv_tokens()
            self._promised = Promised(tokens.total, tokens.projected)
        return self._promised

    def check(self) -> None:
        """Prove that sequences hold all pages that count as used."""
        stray = self._counts.stray()
        if any(stray):
            raise InvariantBroken(f"{stray} pages on the ranks are held by no sequence")

    def _sampled(self, sequence: CountedSequence, ended: Ended) -> None:
        if not sequence.prompt_reported:
            sequence.prompt_reported = True
            ended.prefilled.append(sequence.key)
            if self._rules.after_prompt is SeqState.HANDOFF:
                sequence.state = SeqState.HANDOFF
                self._counts.ahead.drop(sequence.seq)
                return
        if sequence.num_generated >= sequence.output:
            ended.finished.append(sequence.key)
            self._drop(sequence)

    def _new(self, request: Request) -> CountedSequence:
        return new_sequence(
            request, seq=self._roster.next_id, rules=self._rules, num_ranks=self._counts.num_ranks
        )

    def _enter(self, sequence: CountedSequence) -> None:
        self._promised = None
        self._roster.put(sequence)
        self._by_key[sequence.key] = sequence

    def _drop(self, sequence: CountedSequence) -> None:
        self._promised = None
        self._counts.drop_pages(sequence)
        self._roster.remove(sequence.seq)
        del self._by_key[sequence.key]

    def _room_for(self, steps: int) -> bool:
        """Whether the rows under way get the pages of so many more steps."""
        change = [0] * self._counts.num_ranks
        for sequence in self._samples:
            pages = self._counts.pages_for(sequence.cached + steps)
            if pages > sequence.held_pages:
                placement = self._counts.placement(sequence)
                if placement.alike:
                    for rank in placement.owners:
                        change[rank] += pages - sequence.held_pages
                    continue
                for rank, count in enumerate(self._counts.change(sequence, placement, pages)):
                    change[rank] += count
        return self._counts.fits(self.layout, change)

    def _same_reach(self) -> int:
        """Steps until a row sees more keys than sparse attention chooses: from there time grows otherwise."""
        top_k = self._fleet.model.top_k
        if top_k is None:
            return 1 << 30
        near = (sequence.cached for sequence in self._samples if sequence.cached <= top_k)
        return min((top_k - keys + 1 for keys in near), default=1 << 30)
