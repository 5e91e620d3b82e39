"""Random lives of a group on symbolic ranks: tokens never depend on schedules, and nothing is left behind."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.errors import Conflict, ContextTooLong
from splash_core.ids import LeaseId, SeqId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import LandingPage
from splash_core.switch.manifest import Refusal, SwitchMode
from tests.support.fake_ranks import VOCAB, digests, token_after
from tests.support.toy_group import Request, ToyGroup, arena_of

SEEDS = st.integers(0, 2**32)


@dataclass
class Life:
    """Drives one group at random. Both halves of a handoff are played here when the role needs it."""

    rng: Random
    group: ToyGroup
    role: Role
    switching: float
    """How often switches are asked for."""
    ahead: bool = False
    """Whether steps are planned beside one under way."""
    open: list[Grant] = field(default_factory=list)
    """Leases without a writer."""
    claimed: list[tuple[Grant, list[LandingPage]]] = field(default_factory=list)
    """Leases being written, with the pages still to write."""
    claims: int = 0
    writers: dict[LeaseId, str] = field(default_factory=dict)
    """Of each lease, who claimed it last."""

    def tick(self) -> None:
        actions = [self.arrive, self.step, self.half_step, self.switch, self.cancel, self.hand_over]
        self.rng.choices(actions, weights=[4, 6, 4 if self.ahead else 2, self.switching, 1, 3])[0]()

    def arrive(self) -> None:
        rng, limit = self.rng, self.group.scheduler.max_request_tokens
        total = max(int(limit * rng.random() ** rng.choice([0.3, 1, 3])), 2)
        # A few are too long to be served at all.
        total += limit * (rng.random() < 0.05)
        length = rng.randint(1, total - 1) if rng.random() < 0.7 else 1
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        sampling = self.sampling(total - length)
        try:
            if self.role is not Role.DECODE:
                self.group.add(prompt, sampling)
                return
            grant = self.group.reserve(prompt, sampling)
            if grant is None and self.group.plan is None:
                # As a leader's queue does: again at the next boundary.
                self.step()
                grant = self.group.reserve(prompt, sampling)
        except ContextTooLong:
            held = len(prompt) + (0 if self.role is Role.PREFILL else sampling.max_tokens)
            assert held > self.group.scheduler.max_request_tokens
            return
        if grant is not None:
            self.open.append(grant)

    def sampling(self, max_tokens: int) -> SamplingParams:
        rng = self.rng
        if self.role is not Role.DECODE and rng.random() < 0.1:
            return SamplingParams(max_tokens=0, prompt_logprobs=1)
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, 0, max_tokens // 2]),
            stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 1]))),
            prompt_logprobs=rng.choice([None, None, 0]),
        )

    def step(self) -> None:
        if self.group.plan is None and not self.begin():
            return
        self.group.end()

    def half_step(self) -> None:
        """Leaves a step under way, so that what follows happens while ranks are busy."""
        if len(self.group.sent) < 1 + self.ahead:
            self.begin()

    def begin(self) -> bool:
        """Plan a step."""
        self.group.tidies = self.rng.random() < 0.8
        return self.group.begin()

    def switch(self) -> None:
        layout, mode = self.rng.choice(list(Layout)), self.rng.choice(list(SwitchMode))
        try:
            outcome = self.group.scheduler.request_switch(layout, mode)
        except Conflict:
            return
        if isinstance(outcome, SwitchedEvent):
            assert outcome.layout_from == outcome.layout_to == self.group.scheduler.layout
        elif isinstance(outcome, SwitchDeferred):
            held = self.group.scheduler.count(SeqState.LEASED, SeqState.HANDOFF)
            assert held + len(self.claimed) > 0
        elif isinstance(outcome, Refusal):
            assert outcome.reason

    def cancel(self) -> None:
        live = [seq for seq, request in self.group.requests.items() if request.finished is None]
        if not live or self.rng.random() < 0.7:
            return
        seq = self.rng.choice(live)
        self.group.cancel(seq)
        self.open = [grant for grant in self.open if grant.seq != seq]
        if self.rng.random() < 0.5:
            self.group.cancel(seq)

    def hand_over(self) -> None:
        if self.role is Role.DECODE:
            self._write_some()
        elif self.role is Role.PREFILL:
            self._release_one()

    def claim(self, grant: Grant) -> None:
        """A claim after an abandon is another handoff's, so a writer of its own."""
        self.claims += 1
        self.writers[grant.lease] = f"writer/{self.claims}"
        self.group.claim(grant, self.writers[grant.lease])

    def _write_some(self) -> None:
        if self.open and self.rng.random() < 0.5:
            grant = self.open.pop(self.rng.randrange(len(self.open)))
            self.claim(grant)
            self.claimed.append((grant, list(grant.pages)))
        if not self.claimed:
            return
        grant, left = self.claimed[self.rng.randrange(len(self.claimed))]
        count = self.rng.randint(0, len(left))
        # Also for leases whose request has gone: the writer does not know.
        self.group.write(grant, left[:count])
        del left[:count]
        if not left:
            self.finish(grant)

    def finish(self, grant: Grant) -> None:
        """Complete or abandon a lease whose pages are all written."""
        self.claimed = [entry for entry in self.claimed if entry[0] is not grant]
        gone = self.group.requests[grant.seq].cancelled
        scheduler, writer = self.group.scheduler, self.writers[grant.lease]
        if self.rng.random() < (0.5 if gone else 0.1):
            lease = {"attempt": grant.attempt, "incarnation": grant.incarnation, "writer": writer}
            scheduler.abandon(grant.lease, **lease)
            scheduler.abandon(grant.lease, **lease)
            if not gone:
                self.open.append(grant)
            return
        try:
            self.group.land(grant, writer)
            assert not gone
            self.group.land(grant, writer)
        except Conflict:
            assert gone
        scheduler.check_integrity()

    def _release_one(self) -> None:
        if self.held():
            self.release(self.rng.choice(self.held()))

    def held(self) -> list[SeqId]:
        """Prefilled sequences that wait for their push."""
        return [
            seq
            for seq, request in self.group.requests.items()
            if request.prefilled and not (request.finished or request.cancelled or request.released)
        ]

    def release(self, seq: SeqId) -> None:
        """The push is done: what was held must be the whole prompt, and is given back once."""
        request, scheduler = self.group.requests[seq], self.group.scheduler
        chain = digests(request.prompt)
        size = self.group.arena.page_size
        copies = scheduler.copies(seq)
        assert len(copies) == -(-len(chain) // size)
        for index, page in enumerate(copies):
            for copy in page:
                rows = self.group.ranks.read_page(copy.rank, copy.slot)
                for position in range(index * size, min((index + 1) * size, len(chain))):
                    assert rows[position % size] == (position, chain[position])
        request.released = True
        scheduler.release(seq)
        scheduler.release(seq)
        scheduler.check_integrity()

    def drain(self) -> None:
        """Everything admitted finishes, in bounded time, whatever the layout."""
        while self.group.sent:
            self.group.end()
        for _ in range(100):
            self.group.run(ahead=self.ahead)
            for grant in list(self.open):
                self.claim(grant)
                self.claimed.append((grant, list(grant.pages)))
            self.open.clear()
            for grant, left in list(self.claimed):
                self.group.write(grant, left)
                self.finish(grant)
            for seq in self.held():
                self.release(seq)
            if self.group.scheduler.count() == 0 and not self.claimed:
                return
        raise AssertionError("a sequence never finishes")

    def check(self) -> None:
        """Every request was told what an unswitched run tells it, and nothing is held."""
        for request in self.group.requests.values():
            request.check()
            if request.cancelled:
                continue
            if self.role is Role.PREFILL:
                assert request.prefilled is not None
                assert request.told == []
            else:
                assert request.finished is not None
            if request.prefilled is not None:
                self._check_prefilled(request)
        self.group.assert_empty()

    def _check_prefilled(self, request: Request) -> None:
        chain = digests(request.prompt)
        event = request.prefilled
        assert event is not None
        assert event.first_token == (token_after(chain[-1]) if request.sampling.max_tokens else None)
        scored = request.sampling.prompt_logprobs is not None
        assert [entry.token for entry in event.prompt_logprobs] == list(request.prompt[1:]) * scored
        assert [entry.logprob for entry in event.prompt_logprobs] == [
            -float(digest % 97) for digest in chain[:-1] * scored
        ]


def life_of(seed: int, role: Role, *, ahead: bool = False) -> Life:
    rng = Random(seed)
    num_ranks = rng.randint(1, 4)
    arena = arena_of(
        num_ranks=num_ranks,
        ordinary=rng.choice([2, 4, 6, 12]),
        borrowed=rng.choice([0, 4, 9]) if num_ranks > 1 else 0,
        page_size=rng.choice([1, 2, 4]),
    )
    layouts = rng.choice([tuple(Layout), tuple(Layout), (Layout.TP, Layout.DOP), STANDARD_LAYOUTS])
    group = ToyGroup(
        role=role,
        layout=rng.choice(layouts),
        layouts=layouts,
        arena=arena,
        chunk_tokens=rng.choice([1, 3, 7, 30]),
        max_running=rng.choice([1, 3, 16]),
        staging_bytes=arena.slot_bytes * rng.choice([1, 1, 2, 100]),
        admission_overcommit=rng.choice([1.0, 2.0, 10.0]),
        precopy_bytes_per_step=arena.slot_bytes * rng.choice([1, 1, 3, 100]),
    )
    return Life(rng, group, role, rng.choice([0.2, 1.0, 3.0]), ahead=ahead)


def live(seed: int, role: Role, *, ticks: int = 100, ahead: bool = False) -> Life:
    life = life_of(seed, role, ahead=ahead)
    for _ in range(ticks):
        life.tick()
    life.drain()
    life.check()
    return life


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_combined_group(seed: int) -> None:
    live(seed, Role.COMBINED)


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_prefill_group(seed: int) -> None:
    live(seed, Role.PREFILL)


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_decode_group(seed: int) -> None:
    live(seed, Role.DECODE)


@pytest.mark.parametrize("role", Role)
@settings(max_examples=120, deadline=None)
@given(seed=SEEDS)
def test_one_step_ahead(role: Role, seed: int) -> None:
    """The same lives with a second step planned and sent before the first is back."""
    live(seed, role, ahead=True)
