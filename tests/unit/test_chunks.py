"""The order of moves: rings, slots with several readers, and the limits of a chunk."""

import pytest

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.switch.chunks import ChunkScheduler, Need, SlotKey
from splash_core.switch.evacuation import evacuate
from splash_core.switch.manifest import Chunk, PageMove
from splash_core.switch.packing import pack


def need(page: int, src: int, slot: int, dst: int) -> Need:
    return Need(PageId(page), RankId(src), SlotId(slot), RankId(dst))


def run(
    needs: list[Need], *, free: dict[int, list[int]], reusable: set[tuple[int, int]], capacity: int
) -> tuple[Chunk, ...]:
    keys: set[SlotKey] = {(RankId(rank), SlotId(slot)) for rank, slot in reusable}
    return ChunkScheduler(
        needs,
        free={RankId(rank): [SlotId(slot) for slot in slots] for rank, slots in free.items()},
        reusable=frozenset(keys),
        capacity=capacity,
        num_ranks=4,
    ).run()


def test_full_ranks_trade_pages_in_one_chunk() -> None:
    ring = [need(0, 0, 7, 1), need(1, 1, 5, 2), need(2, 2, 6, 0)]
    chunks = run(ring, free={}, reusable={(0, 7), (1, 5), (2, 6)}, capacity=1)
    assert len(chunks) == 1
    assert {(move.page, move.dst, move.dst_slot) for move in chunks[0]} == {(0, 1, 5), (1, 2, 6), (2, 0, 7)}


def test_many_trades_fill_chunks() -> None:
    trades = [need(slot, 0, slot, 1) for slot in range(6)] + [need(6 + slot, 1, slot, 0) for slot in range(6)]
    slots = {(rank, slot) for rank in (0, 1) for slot in range(6)}
    assert [len(chunk) for chunk in run(trades, free={}, reusable=slots, capacity=4)] == [8, 4]


def test_a_chain_that_ends_in_a_free_slot_runs_at_once() -> None:
    chain = [need(0, 0, 1, 1), need(1, 1, 2, 2), need(2, 2, 3, 3)]
    chunks = run(chain, free={3: [9]}, reusable={(0, 1), (1, 2), (2, 3)}, capacity=1)
    assert [len(chunk) for chunk in chunks] == [3]
    assert PageMove(PageId(2), RankId(2), SlotId(3), RankId(3), SlotId(9)) in chunks[0]


def test_a_slot_is_refilled_only_once_all_its_readers_are_done() -> None:
    # Page 0 goes to three ranks, one per chunk; page 1 waits for its slot.
    needs = [need(0, 0, 4, rank) for rank in (1, 2, 3)] + [need(1, 1, 8, 0)]
    chunks = run(needs, free={1: [0], 2: [0], 3: [0]}, reusable={(0, 4)}, capacity=1)
    position = {(move.page, move.dst): number for number, chunk in enumerate(chunks) for move in chunk}
    assert len(chunks) == 3
    assert position[PageId(1), RankId(0)] == max(position[PageId(0), RankId(rank)] for rank in (1, 2, 3))


def test_copies_leave_room_for_pages_whose_move_frees_a_slot() -> None:
    # Rank 1 has one free slot; the copy of page 5 may have it only when the trade is through.
    needs = [need(5, 3, 0, 1), need(6, 0, 1, 1), need(7, 1, 2, 0)]
    chunks = run(needs, free={1: [9]}, reusable={(0, 1), (1, 2)}, capacity=1)
    assert [move.page for chunk in chunks for move in chunk] == [6, 7, 5]


def test_too_few_slots_are_a_planner_bug() -> None:
    with pytest.raises(InvariantBroken, match="1 pages have no slot to go to"):
        run([need(0, 0, 1, 1), need(1, 0, 2, 1)], free={1: [3]}, reusable=set(), capacity=8)


def test_evacuation_prefers_the_wanting_rank_and_parks_at_home() -> None:
    needs = [need(0, 0, 1, 0), need(1, 0, 2, 1), need(2, 0, 3, 2), need(2, 0, 3, 1)]
    free = {RankId(0): [SlotId(10), SlotId(11)], RankId(1): [SlotId(20)], RankId(2): list[SlotId]()}
    plan = evacuate(needs, free)
    assert plan is not None
    assert [(move.page, move.dst, move.dst_slot) for move in plan.moves] == [
        (0, 0, 10),
        (1, 1, 20),
        (2, 0, 11),
    ]
    assert plan.temporary == {(0, 11)}
    assert plan.moved_to[RankId(0), SlotId(3)] == (0, 11)
    assert evacuate(needs, {RankId(0): [SlotId(10)], RankId(1): [], RankId(2): []}) is None


def test_independent_moves_are_packed_by_both_sides() -> None:
    moves = [PageMove(PageId(i), RankId(0), SlotId(i), RankId(i % 3), SlotId(50 + i)) for i in range(6)]
    assert [len(chunk) for chunk in pack(moves, capacity=2)] == [2, 2, 2]
    assert sorted(move for chunk in pack(moves, capacity=2) for move in chunk) == moves
