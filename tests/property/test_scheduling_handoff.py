"""Two groups of different size and layout: prompts computed in one, generated in the other, on symbols."""

import contextlib
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.errors import Conflict
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import HandoffWrite, plan_handoff
from splash_core.switch.manifest import SwitchMode
from tests.support.fake_ranks import VOCAB, expected_output
from tests.support.toy_group import ToyGroup, arena_of

PAGE_SIZE = 2


@dataclass
class Transfer:
    """A request between the groups."""

    grant: Grant
    prefill: SeqId
    writes: list[HandoffWrite] | None = None
    """Left to execute; None while the prompt is computed."""


@dataclass
class Pair:
    rng: Random
    prefill: ToyGroup
    decode: ToyGroup
    transfers: list[Transfer] = field(default_factory=list)
    prompts: dict[SeqId, tuple[list[int], SamplingParams]] = field(default_factory=dict)
    """By the decode group's sequence."""

    def tick(self) -> None:
        actions = [self.arrive, self.run_prefill, self.run_decode, self.push, self.switch, self.cancel]
        self.rng.choices(actions, weights=[3, 3, 3, 4, 1, 0.4])[0]()

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
            self.transfers.append(Transfer(grant, self.prefill.add(prompt, sampling)))
            self.prompts[grant.seq] = (prompt, sampling)

    def run_prefill(self) -> None:
        self.prefill.step()

    def run_decode(self) -> None:
        self.decode.step()

    def switch(self) -> None:
        group = self.rng.choice([self.prefill, self.decode])
        layout, mode = self.rng.choice(list(Layout)), self.rng.choice(list(SwitchMode))
        with contextlib.suppress(Conflict):  # one that copies ahead may be on its way
            group.scheduler.request_switch(layout, mode)
        group.step()

    def push(self) -> None:
        """Some pages of one handoff; the last one completes it."""
        ready = [t for t in self.transfers if self.prefill.requests[t.prefill].prefilled]
        if not ready:
            return
        transfer = self.rng.choice(ready)
        if transfer.writes is None:
            source: tuple[tuple[PageCopy, ...], ...] = self.prefill.scheduler.copies(transfer.prefill)
            transfer.writes = list(plan_handoff(source, transfer.grant.pages))
            assert len(transfer.writes) == len(transfer.grant.pages)
        for _ in range(self.rng.randint(0, len(transfer.writes))):
            write = transfer.writes.pop()
            self.decode.ranks.copy_page(
                self.prefill.ranks, write.src, write.src_slot, write.dst, write.dst_slot
            )
        if not transfer.writes:
            self.finish(transfer)

    def finish(self, transfer: Transfer) -> None:
        self.transfers.remove(transfer)
        request = self.prefill.requests[transfer.prefill]
        assert request.prefilled is not None
        completion = self.decode.completion(transfer.grant, first_token=request.prefilled.first_token)
        try:
            self.decode.take(self.decode.scheduler.landed(completion))
        except Conflict:
            assert self.decode.requests[transfer.grant.seq].cancelled
        request.released = True
        self.prefill.scheduler.release(transfer.prefill)
        self.prefill.scheduler.check_integrity()

    def cancel(self) -> None:
        """The client of an open handoff leaves: the decode group knows first."""
        if self.transfers:
            self.decode.cancel(self.rng.choice(self.transfers).grant.seq)

    def drain(self) -> None:
        for _ in range(2000):
            self.push()
            busy = [self.prefill.step(), self.decode.step()]
            if busy == [None, None] and not self.transfers:
                return
        raise AssertionError("a handoff never ends")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_handoffs_between_groups_that_switch(seed: int) -> None:
    rng = Random(seed)
    groups = [
        ToyGroup(
            role=role,
            layout=rng.choice(list(Layout)),
            arena=arena_of(
                num_ranks=rng.randint(1, 3),
                ordinary=rng.choice([3, 8]),
                borrowed=rng.choice([0, 5]),
                page_size=PAGE_SIZE,
            ),
            chunk_tokens=rng.choice([2, 5, 30]),
        )
        for role in (Role.PREFILL, Role.DECODE)
    ]
    pair = Pair(rng, prefill=groups[0], decode=groups[1])
    for _ in range(80):
        pair.tick()
    pair.drain()
    for seq, (prompt, sampling) in pair.prompts.items():
        request = pair.decode.requests[seq]
        request.check()
        assert request.cancelled or request.told == expected_output(prompt, sampling)[0]
    for group in groups:
        group.assert_empty()
