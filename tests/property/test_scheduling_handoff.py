"""Two groups of different size and layout: prompts computed in one, generated in the other, on symbols.

Pages leave while later chunks of their prompt are computed, and are copied at any later time, as a push lane
would; meanwhile both groups switch, prompts are preempted and clients leave.
"""

import contextlib
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.errors import Conflict
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import HandoffWrite, plan_handoff
from splash_core.switch.manifest import SwitchMode
from tests.support.fake_ranks import VOCAB, digests, expected_output
from tests.support.toy_group import ToyGroup, arena_of

PAGE_SIZE = 2


@dataclass
class Push:
    """One push under way: what is left of it."""

    number: int
    step: int
    left: list[HandoffWrite]


@dataclass
class Transfer:
    """A request between the groups."""

    grant: Grant
    prefill: SeqId
    prompt: list[int]
    attempt: int = 1
    run: int = 0
    ordered: int = 0
    written: set[int] = field(default_factory=set)
    pushes: list[Push] = field(default_factory=list)
    renewing: bool = False
    """Computed again: nothing leaves before the pushes of the computation before are over."""
    gone: bool = False
    """The client has left."""


@dataclass
class Pair:
    rng: Random
    prefill: ToyGroup
    decode: ToyGroup
    transfers: list[Transfer] = field(default_factory=list)
    prompts: dict[SeqId, tuple[list[int], SamplingParams]] = field(default_factory=dict)
    """By the decode group's sequence."""
    executed: int = 0
    """Steps that the prefill group's ranks have run."""

    def tick(self) -> None:
        actions = [self.arrive, self.run_prefill, self.run_decode, self.copy, self.switch, self.cancel]
        self.rng.choices([*actions, self.preempt], weights=[3, 4, 3, 4, 2, 0.4, 0.3])[0]()

    def arrive(self) -> None:
        rng = self.rng
        longest = min(g.scheduler.max_request_tokens for g in (self.prefill, self.decode))
        total = rng.randint(2, longest)
        length = rng.randint(1, total - 1)
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        sampling = SamplingParams(
            max_tokens=total - length, stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 1])))
        )
        grant = self.decode.reserve(prompt, sampling)
        if grant is not None:
            self.decode.claim(grant)
            self.transfers.append(Transfer(grant, self.prefill.add(prompt, sampling), prompt))
            self.prompts[grant.seq] = (prompt, sampling)

    def run_prefill(self) -> None:
        """One step, perhaps with the next one sent behind it; what they fill is ordered before they run."""
        self.order()
        sent = self.prefill.sent
        while len(sent) < MOST_UNDER_WAY and (not sent or self.rng.random() < 0.5) and self.prefill.begin():
            if self.rng.random() < 0.8:
                self.order()
        if sent:
            step = sent[0].plan.step
            self.prefill.end()
            self.executed = step

    def run_decode(self) -> None:
        self.decode.step()

    def switch(self) -> None:
        group = self.rng.choice([self.prefill, self.decode])
        layout, mode = self.rng.choice(list(Layout)), self.rng.choice(list(SwitchMode))
        with contextlib.suppress(Conflict):  # one that copies ahead, or waits for pushes, may be on its way
            group.scheduler.request_switch(layout, mode)
        if group is self.prefill:
            self.run_prefill()
        else:
            self.run_decode()

    def preempt(self) -> None:
        """As for an older prompt after a switch into a layout that holds less; pushes may be under way."""
        parts = self.prefill.scheduler._parts
        victims = parts.roster.within(SeqState.RUNNING)
        if victims and not self.prefill.sent:
            parts.residency.preempt(self.rng.choice(victims))
            self.prefill.scheduler.check_integrity()

    def order(self) -> None:
        """Order pushes of all that may leave now."""
        book = self.prefill.scheduler.pushes
        for transfer in self.transfers:
            outgoing = None if transfer.gone else book.outgoing(transfer.prefill, first=transfer.ordered)
            if outgoing is None:
                continue
            if outgoing.run != transfer.run:
                transfer.run, transfer.renewing = outgoing.run, bool(transfer.ordered) or transfer.renewing
            if transfer.renewing and not transfer.pushes:
                self.renew(transfer)
                continue
            if transfer.renewing or outgoing.pages <= transfer.ordered:
                continue
            first, transfer.ordered = transfer.ordered, outgoing.pages
            number, pages = book.begin(
                transfer.prefill, first=first, end=outgoing.pages, lease=transfer.grant.lease
            )
            writes = plan_handoff(pages.copies, transfer.grant.pages, first_index=first)
            transfer.pushes.append(Push(number, pages.step, list(writes)))
            self.prefill.scheduler.check_integrity()

    def renew(self, transfer: Transfer) -> None:
        transfer.attempt += 1
        transfer.ordered, transfer.renewing = 0, False
        transfer.written.clear()
        keys = {"attempt": transfer.attempt, "incarnation": transfer.grant.incarnation, "writer": "writer"}
        # A lease whose request has gone takes no new claim: then nothing more is pushed.
        try:
            self.decode.scheduler.claim(transfer.grant.lease, **keys)
        except Conflict:
            transfer.attempt -= 1
            self.leave(transfer)

    def copy(self) -> None:
        """Some pages of some push whose step has run; whoever is done is told."""
        transfers = [t for t in self.transfers if t.pushes]
        if transfers:
            transfer = self.rng.choice(transfers)
            ready = [push for push in transfer.pushes if push.step <= self.executed]
            if ready:
                self.copy_of(transfer, self.rng.choice(ready))
        for transfer in tuple(self.transfers):
            self.conclude(transfer)

    def copy_of(self, transfer: Transfer, push: Push) -> None:
        chain = digests(transfer.prompt)
        for _ in range(self.rng.randint(0, len(push.left))):
            write = push.left.pop()
            first = write.index * PAGE_SIZE
            held = self.prefill.ranks.read_page(write.src, write.src_slot)
            rows = [
                (first + offset, digest) for offset, digest in enumerate(chain[first : first + PAGE_SIZE])
            ]
            assert held[: len(rows)] == rows, "a page that is pushed was moved or overwritten"
            self.decode.ranks.copy_page(
                self.prefill.ranks, write.src, write.src_slot, write.dst, write.dst_slot
            )
            transfer.written.add(write.index)
        if not push.left:
            transfer.pushes.remove(push)
            self.prefill.scheduler.pushes.end(push.number)
            self.prefill.scheduler.check_integrity()

    def conclude(self, transfer: Transfer) -> None:
        if transfer.pushes:
            return
        whole = len(transfer.written) == len(transfer.grant.pages)
        if transfer.gone:
            self.transfers.remove(transfer)
            self.decode.scheduler.abandon(
                transfer.grant.lease,
                attempt=transfer.attempt,
                incarnation=transfer.grant.incarnation,
                writer="writer",
            )
        elif self.prefill.requests[transfer.prefill].prefilled and not transfer.renewing and whole:
            self.finish(transfer)

    def finish(self, transfer: Transfer) -> None:
        self.transfers.remove(transfer)
        request = self.prefill.requests[transfer.prefill]
        assert request.prefilled is not None
        completion = self.decode.completion(
            transfer.grant, first_token=request.prefilled.first_token, attempt=transfer.attempt
        )
        try:
            self.decode.take(self.decode.scheduler.landed(completion))
        except Conflict:
            assert self.decode.requests[transfer.grant.seq].cancelled
        request.released = True
        self.prefill.scheduler.release(transfer.prefill)
        self.prefill.scheduler.check_integrity()

    def cancel(self) -> None:
        """The client of an open handoff leaves, at any point; either group may hear of it first."""
        if not self.transfers:
            return
        transfer = self.rng.choice(self.transfers)
        if self.rng.random() < 0.5:
            self.decode.cancel(transfer.grant.seq)
        else:
            self.leave(transfer)

    def leave(self, transfer: Transfer) -> None:
        transfer.gone = True
        self.prefill.cancel(transfer.prefill)
        self.decode.cancel(transfer.grant.seq)

    def drain(self) -> None:
        for _ in range(3000):
            self.copy()
            before = len(self.prefill.plans) + len(self.decode.plans)
            self.run_prefill()
            self.run_decode()
            idle = len(self.prefill.plans) + len(self.decode.plans) == before
            if idle and not self.transfers and not self.prefill.sent:
                return
        raise AssertionError("a handoff never ends")


def _pair(rng: Random) -> Pair:
    groups = [
        ToyGroup(
            role=role,
            layout=rng.choice(list(Layout)),
            arena=arena_of(
                num_ranks=rng.randint(1, 3),
                ordinary=rng.choice([3, 8, 30]),
                borrowed=rng.choice([0, 5]),
                page_size=PAGE_SIZE,
            ),
            chunk_tokens=rng.choice([2, 3, 5, 30]),
            admission_overcommit=rng.choice([1.0, 3.0]),
        )
        for role in (Role.PREFILL, Role.DECODE)
    ]
    return Pair(rng, prefill=groups[0], decode=groups[1])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_handoffs_between_groups_that_switch(seed: int) -> None:
    pair = _pair(Random(seed))
    for _ in range(80):
        pair.tick()
    pair.drain()
    for seq, (prompt, sampling) in pair.prompts.items():
        request = pair.decode.requests[seq]
        request.check()
        assert request.cancelled or request.told == expected_output(prompt, sampling)[0]
    for group in (pair.prefill, pair.decode):
        group.assert_empty()


def test_the_random_lives_meet_what_they_are_made_for() -> None:
    """Pages pushed beside later chunks, new attempts, pages that only a push keeps, switches that wait."""
    early = attempts = left_over = waiting = 0
    for seed in range(40):
        pair = _pair(Random(seed))
        running = pair.prefill.scheduler._parts.roster
        for _ in range(80):
            pair.tick()
            book = pair.prefill.scheduler.pushes
            pages = {page for sequence in running.within(SeqState.RUNNING) for page in sequence.pages}
            early += not pages.isdisjoint(book.pages)
            attempts += sum(transfer.attempt > 1 for transfer in pair.transfers)
            left_over += len(book.left_over)
            waiting += book.held
        pair.drain()
    assert min(early, attempts, left_over, waiting) > 10, (early, attempts, left_over, waiting)
