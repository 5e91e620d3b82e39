"""Ranks of a group that execute step plans on symbols: what a leader's tables are worth, without tensors.

Every KV row is a symbol (position, digest of all tokens up to it). A row may run only if every copy of its
whole history is where the mirrored tables say, on the ranks that the layout wants; the token after a history
is a function of the digest that was *read from the arena*. So a wrong table, a lost page or a slot with two
users gives a failed assertion or a wrong token, and an unswitched run gives the reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.homes import RowsOfSequence, assign_homes
from splash_core.layout.layout import RULES, KvHistory, Layout, Matrices
from splash_core.layout.ownership import NO_SLOT
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.step import (
    DrawnToken,
    PromptLogprobs,
    SampledToken,
    SequenceStep,
    StepPlan,
    StepResult,
    StepTimes,
    TokenLogprobs,
)
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Chunk, SwitchManifest
from splash_core.switch.precopy import PrecopyBatch

VOCAB = 11
WEIGHTS = ("weights", 0)
Row = tuple[int | str, int]
"""(position, digest of the tokens up to it)."""


def digests(tokens: Sequence[int]) -> list[int]:
    """The digest of each prefix of `tokens`."""
    result: list[int] = []
    digest = 17
    for token in tokens:
        digest = (digest * 1_000_003 + token * 7919 + 13) % (1 << 61)
        result.append(digest)
    return result


def token_after(digest: int) -> int:
    """What every layout must draw after a history with this digest."""
    return (digest >> 7) % VOCAB


def expected_output(prompt: Sequence[int], sampling: SamplingParams) -> tuple[list[int], int | None]:
    """The output of an unswitched run: told tokens, and the stop token that ended it, if any."""
    tokens = list(prompt)
    output: list[int] = []
    while len(output) < sampling.max_tokens:
        token = token_after(digests(tokens)[-1])
        if token in sampling.stop_token_ids and len(output) + 1 >= sampling.min_tokens:
            return output, token
        tokens.append(token)
        output.append(token)
    return output, None


@dataclass
class Mirror:
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams
    told: int = 0
    """Tokens that the leader has told; the others were drawn here."""
    drew: tuple[StepId, int, int] | None = None
    """The latest draw: its step, the position and the token."""
    table: list[tuple[int, ...]] = field(default_factory=list)
    to_come: list[tuple[int, ...]] = field(default_factory=list)


class FakeRanks:
    """All ranks of a group."""

    def __init__(self, arena: ArenaMap, layout: Layout) -> None:
        self.arena = arena
        self.layout = layout
        self.epoch = Epoch(0)
        self.mirrors: dict[SeqId, Mirror] = {}
        self.rows_run = 0
        self._held: dict[tuple[int, int, int], list[Row | None]] = {}
        for layer in range(arena.num_layers):
            self._fill_weights(layer, RULES[layout].fills)

    def step(self, plan: StepPlan) -> tuple[StepResult, ...]:
        """Execute a plan on all ranks."""
        manifest = plan.manifest
        if manifest is not None:
            assert manifest.layout_from == self.layout
            self.layout = manifest.layout_to
            assert manifest.epoch == self.epoch + (manifest.layout_from != manifest.layout_to)
            self.epoch = manifest.epoch
        assert (plan.layout, plan.epoch) == (self.layout, self.epoch)
        self._apply_mirrors(plan)
        for rows in plan.sequences:
            self._take_tokens(rows, plan.step)
        self._check_slots_distinct(plan)
        received, copied = [0] * self.arena.num_ranks, [0] * self.arena.num_ranks
        # Beside the rows: before them or after them must be the same.
        ahead_first = manifest is None and plan.step % 2 == 0
        if plan.precopy is not None and ahead_first:
            copied = self._copy_ahead(plan.precopy)
        for chunk in manifest.boundary_chunks if manifest else ():
            self._run_chunk(chunk, range(self.arena.num_layers), received)
        for layer in range(self.arena.num_layers):
            if manifest is not None:
                self._switch_layer(manifest, layer, received)
            for step in plan.sequences:
                self._write_rows(step, layer)
        if plan.precopy is not None:
            if not ahead_first:
                copied = self._copy_ahead(plan.precopy)
            self._check_copied(plan.precopy)
        self._check_weights()
        tokens: list[list[SampledToken]] = [[] for _ in received]
        scores: list[list[PromptLogprobs]] = [[] for _ in received]
        self._report(plan, tokens, scores)
        self.rows_run += plan.num_rows
        return tuple(
            StepResult(
                step=plan.step,
                rank=RankId(rank),
                tokens=tuple(tokens[rank]),
                prompt_logprobs=tuple(scores[rank]),
                switch_bytes_received=received[rank],
                precopy_bytes_received=copied[rank],
                times=StepTimes(total_s=1.0 + rank, switch_wait_s=0.25 * rank),
            )
            for rank in range(self.arena.num_ranks)
        )

    def write_page(self, rank: int, slot: int, first_position: int, rows: Sequence[int]) -> None:
        """Somebody outside writes a page of digests, on all layers."""
        for layer in range(self.arena.num_layers):
            page = self._page(rank, layer, slot)
            for offset, digest in enumerate(rows):
                page[offset] = (first_position + offset, digest)

    def read_page(self, rank: int, slot: int) -> list[Row | None]:
        """What a page holds; the same on all layers."""
        pages = [self._page(rank, layer, slot) for layer in range(self.arena.num_layers)]
        assert all(page == pages[0] for page in pages)
        return list(pages[0])

    def copy_page(self, source: "FakeRanks", src: int, src_slot: int, dst: int, dst_slot: int) -> None:
        """Push a page of another group into this one."""
        for layer in range(self.arena.num_layers):
            self._held[dst, layer, dst_slot] = source.read_page(src, src_slot)

    def _apply_mirrors(self, plan: StepPlan) -> None:
        for seq in plan.finished:
            del self.mirrors[seq]
        for new in plan.started:
            assert new.seq not in self.mirrors, "started twice"
            self.mirrors[new.seq] = Mirror(
                tokens=list(new.tokens),
                num_prompt=new.num_prompt,
                sampling=new.sampling,
                told=len(new.tokens),
            )
        for rows in plan.taken:
            mirror = self.mirrors[rows.seq]
            assert rows.num_pages <= min(len(mirror.table), len(mirror.to_come)), "rows that were never told"
            mirror.table[: rows.num_pages] = mirror.to_come[: rows.num_pages]
        for update in plan.ahead:
            to_come = self.mirrors[update.seq].to_come
            assert update.first_page <= len(to_come), "a gap in rows to come"
            to_come[update.first_page :] = update.slots
        for update in plan.tables:
            table = self.mirrors[update.seq].table
            assert update.first_page <= len(table), "a gap in a table"
            table[update.first_page :] = update.slots

    def _take_tokens(self, rows: SequenceStep, step: StepId) -> None:
        """What the plan tells of a history, and what it says that the ranks know by themselves."""
        mirror = self.mirrors[rows.seq]
        assert rows.count > 0, "a sequence without rows"
        # Told is told once, in order, and only what was drawn here.
        first = rows.start - len(rows.before)
        assert not rows.before or first == mirror.told, "tokens told twice, or a gap"
        assert list(rows.before) == mirror.tokens[first : rows.start], "a draw told otherwise than drawn"
        mirror.told += len(rows.before)
        assert mirror.told >= rows.start, "a token that mirrors lack"
        tokens: tuple[int, ...]
        if isinstance(rows.tokens, DrawnToken):
            assert mirror.drew is not None, "a draw that never was"
            drawn_in, position, token = mirror.drew
            assert (drawn_in, position) == (rows.tokens.step, rows.start), "a draw of another step"
            assert drawn_in == step - 1, "a draw of a step that is over"
            tokens = (token,)
        else:
            tokens = rows.tokens
            mirror.told = max(mirror.told, rows.end)
        known = mirror.tokens[rows.start : rows.end]
        assert list(tokens[: len(known)]) == known, "rows do not continue the history"
        mirror.tokens[rows.start : rows.end] = tokens

    def _check_slots_distinct(self, plan: StepPlan) -> None:
        """No slot has two users among the sequences that run, and none lies under weights."""
        seen: set[tuple[int, int]] = set()
        under = {slot for matrix in RULES[plan.layout].fills for slot in self.arena.lenders[matrix]}
        for step in plan.sequences:
            for row in self.mirrors[step.seq].table:
                for rank, slot in enumerate(row):
                    if slot == NO_SLOT:
                        continue
                    assert (rank, slot) not in seen, "a slot with two users"
                    assert slot not in under, "a page under weights"
                    seen.add((rank, slot))

    def _switch_layer(self, manifest: SwitchManifest, layer: int, received: list[int]) -> None:
        if layer not in manifest.ready_layers:
            self._fill_weights(layer, frozenset(manifest.gathered))
        for chunk in manifest.layer_chunks:
            self._run_chunk(chunk, (layer,), received)

    def _copy_ahead(self, batch: PrecopyBatch) -> list[int]:
        """Copy what no row of this step may need or disturb; pages received by each rank."""
        received = [0] * self.arena.num_ranks
        tables = [row for mirror in self.mirrors.values() for row in mirror.table]
        shown = {copy for row in tables for copy in _copies(row)}
        under = {slot for matrix in batch.gathered for slot in self.arena.lenders[matrix]}
        assert not any(slot in under for _, slot in shown), "weights over a page"
        assert not RULES[self.layout].fills.intersection(batch.gathered), "weights that are in use"
        for layer in batch.weight_layers:
            self._fill_weights(layer, frozenset(batch.gathered))
        assert not shown.intersection((move.dst, move.dst_slot) for move in batch.moves)
        assert shown.issuperset((move.src, move.src_slot) for move in batch.moves)
        for chunk in batch.chunks:
            self._run_chunk(chunk, range(self.arena.num_layers), received)
        return received

    def _check_copied(self, batch: PrecopyBatch) -> None:
        """What was copied ahead is whole, and equal to its source before and after the rows."""
        for move in batch.moves:
            page = self.read_page(move.dst, move.dst_slot)
            assert page == self.read_page(move.src, move.src_slot), move
            assert None not in page, "a page copied ahead before it was full"

    def _check_weights(self) -> None:
        """A replicated layout has all weights where they belong, whenever they came."""
        if self.arena.num_ranks == 1:
            return  # one rank has all heads anyway
        filled = [slot for matrix in RULES[self.layout].fills for slot in self.arena.lenders[matrix]]
        for rank in range(self.arena.num_ranks):
            for slot in filled:
                for layer in range(self.arena.num_layers):
                    assert self._page(rank, layer, slot) == [WEIGHTS] * self.arena.page_size

    def _run_chunk(self, chunk: Chunk, layers: Sequence[int], received: list[int]) -> None:
        staged = [
            (move.dst, layer, move.dst_slot, list(self._page(move.src, layer, move.src_slot)))
            for move in chunk
            for layer in layers
        ]
        for dst, layer, slot, rows in staged:
            self._held[dst, layer, slot] = rows
        for move in chunk:
            received[move.dst] += (move.src != move.dst) * len(layers)

    def _write_rows(self, step: SequenceStep, layer: int) -> None:
        mirror, end = self.mirrors[step.seq], step.end
        chain = digests(mirror.tokens[:end])
        size = self.arena.page_size
        pages = mirror.table[: -(-end // size)]
        assert len(pages) == -(-end // size), "rows without a page"
        self._check_placement(pages)
        for position in range(step.start, end):
            for rank, slot in _copies(pages[position // size]):
                self._page(rank, layer, slot)[position % size] = (position, chain[position])
        # Reads its own rows too: what two users of a slot overwrote shows here.
        for position in range(end):
            for rank, slot in _copies(pages[position // size]):
                row = self._page(rank, layer, slot)[position % size]
                assert row == (position, chain[position]), (step.seq, position, rank, slot, row)

    def _check_placement(self, pages: Sequence[tuple[int, ...]]) -> None:
        history = RULES[self.layout].history
        holders = [[rank for rank, _ in _copies(page)] for page in pages]
        if history is KvHistory.ALL:
            assert all(len(ranks) == self.arena.num_ranks for ranks in holders)
        else:
            assert all(len(ranks) == 1 for ranks in holders), holders
        if history is KvHistory.OWNER:
            assert len({ranks[0] for ranks in holders}) == 1
        if history is KvHistory.STRIPED:
            size = self.arena.num_ranks
            assert all(
                (ranks[0] - holders[0][0]) % size == index % size for index, ranks in enumerate(holders)
            )

    def _report(
        self, plan: StepPlan, tokens: list[list[SampledToken]], scores: list[list[PromptLogprobs]]
    ) -> None:
        size = self.arena.page_size
        shapes = []
        for step in plan.sequences:
            touched = self.mirrors[step.seq].table[step.start // size : (step.end - 1) // size + 1]
            holders = tuple(RankId(_copies(page)[0][0]) for page in touched)
            shapes.append(RowsOfSequence(start=step.start, count=step.count, page_holders=holders))
        homes = assign_homes(
            RULES[plan.layout].history, shapes, num_ranks=self.arena.num_ranks, page_size=size
        )
        for rank, ranges in enumerate(homes):
            for run in ranges:
                step = plan.sequences[run.sequence]
                mirror = self.mirrors[step.seq]
                first = step.start + run.first
                chain = digests(mirror.tokens[: first + run.count])
                scores[rank].extend(self._scores(step.seq, mirror, chain, first, run.count))
                if step.sample and run.first + run.count == step.count:
                    token = token_after(chain[-1])
                    mirror.drew = plan.step, step.end, token
                    logprob = None
                    if mirror.sampling.logprobs is not None:
                        logprob = TokenLogprobs(token=token, logprob=-1.0)
                    tokens[rank].append(SampledToken(seq=step.seq, token=token, logprobs=logprob))

    def _scores(
        self, seq: SeqId, mirror: Mirror, chain: list[int], first: int, count: int
    ) -> list[PromptLogprobs]:
        if mirror.sampling.prompt_logprobs is None:
            return []
        positions = [p for p in range(first + 1, first + count + 1) if p < mirror.num_prompt]
        if not positions:
            return []
        entries = tuple(
            TokenLogprobs(token=mirror.tokens[p], logprob=-float(chain[p - 1] % 97)) for p in positions
        )
        return [PromptLogprobs(seq=seq, first_position=positions[0], entries=entries)]

    def _page(self, rank: int, layer: int, slot: int) -> list[Row | None]:
        return self._held.setdefault((rank, layer, slot), [None] * self.arena.page_size)

    def _fill_weights(self, layer: int, matrices: Matrices) -> None:
        # A slot inside layer i's weights holds a page of *all* layers: the gather overwrites them all.
        for (owner, matrix), place in self.arena.places.items():
            if owner == layer and matrix in matrices:
                for rank in range(self.arena.num_ranks):
                    for slot in place.borrowed:
                        for each in range(self.arena.num_layers):
                            self._held[rank, each, slot] = [WEIGHTS] * self.arena.page_size


def _copies(row: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(rank, slot) for rank, slot in enumerate(row) if slot != NO_SLOT]
