"""One closed batch through a prefill group, the link and a decode group: when does the last request end?

The paper's measure is B · (L_in + L_out) / T_batch with queueing, prefill, transfer and decode in T_batch,
and only the prefill layout varies. So this plays the batch through, in the order in which the scheduler
would serve it: prompts are admitted as a layout's pool has room, computed in chunks of a token budget,
handed over page by page with the steps that fill them, and decoded together under one fixed layout.
Invariant: deterministic; steps in which nothing but contexts changes are summed as one load, so that the
result does not depend on how many there are.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.step_kind import StepKind
from splash_core.layout.layout import RULES, KvHistory, Layout
from splash_core.policy.decode_line import DecodeLine
from splash_core.policy.snapshot import LayoutPool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPair:
    """One prefill group and one decode group on paper."""

    prefill: CostModel
    decode: CostModel
    pools: Mapping[Layout, LayoutPool]
    """Of the prefill group."""
    decode_layout: Layout
    decode_tokens: int
    """Tokens of a decode rank's pool."""
    chunk_tokens: int
    """Most rows of a prefill step."""
    page_size: int
    handoff_bps: float
    """Bytes per second that one prefill rank can push."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """How long a batch takes in one prefill layout, in seconds from its arrival."""

    layout: Layout
    prefill_s: float
    """Until the last prompt is computed."""
    handed_over_s: float
    """Until the last prompt is in the decode group."""
    total_s: float
    """Until the last token."""
    waves: int
    """Times that admission took prompts in, the first included."""


@dataclass(slots=True)
class _Prompt:
    owner: int
    left: int
    done: int = 0


@dataclass(slots=True)
class _PricedPrefill:
    """The prefill group while a batch is in it."""

    pair: PricedPair
    layout: Layout
    tokens: int
    waiting: int
    used: list[int]
    running: list[_Prompt] = field(default_factory=list[_Prompt])
    clock_s: float = 0.0
    waves: int = 0
    ends: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(time, owner) of each computed prompt."""

    @property
    def by_owner(self) -> bool:
        """True where a history lies on one rank."""
        return RULES[self.layout].history is KvHistory.OWNER

    def admit(self) -> None:
        """Prompts come in, in order, on the emptiest owner, while the pool holds them whole."""
        pages = -(-self.tokens // self.pair.page_size)
        room = self.pair.pools[self.layout].total_tokens // self.pair.page_size
        history, admitted = RULES[self.layout].history, 0
        while self.waiting:
            owner = min(range(len(self.used)), key=lambda rank: self.used[rank])
            per_holder = -(-pages // len(self.used)) if history is KvHistory.STRIPED else pages
            holders = [owner] if self.by_owner else range(len(self.used))
            if any(self.used[rank] + per_holder > room for rank in holders):
                break
            for rank in holders:
                self.used[rank] += per_holder
            self.running.append(_Prompt(owner, self.tokens))
            self.waiting -= 1
            admitted += 1
        self.waves += admitted > 0

    def advance(self) -> None:
        """As many equal steps as there are until a prompt ends or the rows have to be divided anew."""
        takes = _divide(self.running, self.pair.chunk_tokens, by_owner=self.by_owner)
        steps = min(prompt.left // rows for prompt, rows in takes)
        model, ranks = self.pair.prefill, len(self.used)
        items = [
            Rows(rows * steps, prompt.done, prompt.owner, steps, samples=int(prompt.left == rows * steps))
            for prompt, rows in takes
        ]
        load = Load.of(items, num_ranks=ranks, steps=steps, top_k=model.top_k)
        self.clock_s += model.predict(RULES[self.layout], load, kind=StepKind.PROMPTS).total_s
        for prompt, rows in takes:
            prompt.done += rows * steps
            prompt.left -= rows * steps
        for prompt in [prompt for prompt in self.running if not prompt.left]:
            self.running.remove(prompt)
            self._leave(prompt)

    def _leave(self, prompt: _Prompt) -> None:
        self.ends.append((self.clock_s, prompt.owner))
        pages = -(-self.tokens // self.pair.page_size)
        striped = RULES[self.layout].history is KvHistory.STRIPED
        for rank in [prompt.owner] if self.by_owner else range(len(self.used)):
            self.used[rank] -= -(-pages // len(self.used)) if striped else pages


def batch_time(
    pair: PricedPair, layout: Layout, *, batch: int, input_tokens: int, output_tokens: int
) -> BatchTime | None:
    """Time of `batch` requests that come at once; None when a request never fits the prefill group.

    Args:
        pair: the groups.
        layout: the prefill layout.
        batch: requests.
        input_tokens: prompt of each.
        output_tokens: tokens that each generates, the first one in the prefill group.
    """
    ranks = pair.prefill.num_ranks
    group = _PricedPrefill(pair, layout, input_tokens, batch, used=[0] * ranks)
    while group.waiting or group.running:
        group.admit()
        if not group.running:
            return None
        group.advance()
    landed = _landed(pair, layout, group.ends, input_tokens)
    line = DecodeLine(
        model=pair.decode,
        layout=pair.decode_layout,
        context=input_tokens + output_tokens // 2,
        most=_decode_seats(pair, input_tokens + output_tokens),
    )
    return BatchTime(
        layout=layout,
        prefill_s=group.clock_s,
        handed_over_s=landed[-1],
        total_s=line.finish(landed, tokens=output_tokens - 1),
        waves=group.waves,
    )


def _divide(running: Sequence[_Prompt], budget: int, *, by_owner: bool) -> list[tuple[_Prompt, int]]:
    """Rows of each prompt in a step: oldest first, each owner its part of the budget where owners matter."""
    if not by_owner:
        return _fill(running, budget)
    queues: dict[int, list[_Prompt]] = {}
    for prompt in running:
        queues.setdefault(prompt.owner, []).append(prompt)
    share = max(budget // len(queues), 1)
    return [taken for queue in queues.values() for taken in _fill(queue, share)]


def _fill(queue: Sequence[_Prompt], budget: int) -> list[tuple[_Prompt, int]]:
    takes: list[tuple[_Prompt, int]] = []
    for prompt in queue:
        rows = min(prompt.left, budget)
        if rows:
            takes.append((prompt, rows))
            budget -= rows
    return takes


def _landed(pair: PricedPair, layout: Layout, ends: Sequence[tuple[float, int]], tokens: int) -> list[float]:
    """When each prompt is in the decode group: its last step's pages leave then, all others have left before.

    A rank pushes what it holds (one copy crosses, by turns, where all ranks hold it), and no faster than its
    link: a prompt also waits for those before it on the same ranks.
    """
    size = tokens * pair.prefill.precision.kv_token_bytes(pair.prefill.spec)
    owner_only = RULES[layout].history is KvHistory.OWNER
    ranks = pair.prefill.num_ranks
    pushing = size / (1 if owner_only else ranks) / pair.handoff_bps
    tail = pushing * min(pair.chunk_tokens / (ranks if owner_only else 1) / tokens, 1.0)
    free_at: deque[float] = deque([0.0] * ranks)
    landed: list[float] = []
    for end, owner in ends:
        rank = owner if owner_only else 0
        free_at[rank] = max(end + tail, free_at[rank] + pushing)
        landed.append(free_at[rank])
    return sorted(landed)


def _decode_seats(pair: PricedPair, tokens: int) -> int:
    """Requests that the decode group holds at a time."""
    ranks = pair.decode.num_ranks
    pages, room = -(-tokens // pair.page_size), pair.decode_tokens // pair.page_size
    match RULES[pair.decode_layout].history:
        case KvHistory.OWNER:
            return max(room // pages, 1) * ranks
        case KvHistory.STRIPED:
            return max(room * ranks // pages, 1)
        case _:
            return max(room // pages, 1)
