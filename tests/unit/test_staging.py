"""A chunk as rows of staging: everybody gets what is theirs, rows are shared where peers get the same."""

from collections import defaultdict

import torch
from hypothesis import given
from hypothesis import strategies as st

from splash_core.engine.staging import ChunkWork, Staging, lay_out, prepare
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.columns import column, page_column
from splash_core.switch.chunks import STAGING_PARTS, chunk_bytes
from splash_core.switch.manifest import Chunk, Flow, PageMove

CPU = torch.device("cpu")
T = 4


def wanted(**peers: tuple[int, list[int]]) -> list[Flow]:
    """Flows of rank 0, by peer: the first page, and slots; pages follow each other."""
    return [flow(int(name[1:]), page, slots) for name, (page, slots) in peers.items()]


def flow(peer: int, page: int, slots: list[int]) -> Flow:
    pages = page_column(range(page, page + len(slots)))
    return Flow(RankId(0), RankId(peer), pages, column(slots), column(slots))


def test_peers_that_get_the_same_share_rows() -> None:
    rows, spans = lay_out(wanted(p1=(1, [5, 6, 7]), p2=(0, [4, 5, 6, 7]), p3=(1, [5, 6])))
    assert rows == column([4, 5, 6, 7])
    assert spans == {1: (1, 4), 2: (0, 4), 3: (1, 3)}


def test_a_stretch_may_go_on_where_another_ends() -> None:
    rows, spans = lay_out(wanted(p1=(0, [4, 5, 6]), p2=(1, [5, 6, 7])))
    assert rows == column([4, 5, 6, 7])
    assert spans == {1: (0, 3), 2: (1, 4)}


def test_different_pages_lie_apart() -> None:
    rows, spans = lay_out(wanted(p1=(0, [4, 6]), p2=(1, [5, 6]), p3=(2, [7, 4])))
    assert rows == column([4, 6, 5, 6, 7, 4])
    assert spans == {1: (0, 2), 2: (2, 4), 3: (4, 6)}


@given(
    lists=st.dictionaries(
        st.integers(0, 5), st.lists(st.integers(0, 6), min_size=1, max_size=6, unique=True), max_size=6
    )
)
def test_every_peer_finds_its_slots_in_order(lists: dict[int, list[int]]) -> None:
    rows, spans = lay_out([flow(peer, slots[0], slots) for peer, slots in lists.items()])
    assert {peer: rows[first:end].tolist() for peer, (first, end) in spans.items()} == lists
    assert len(rows) <= sum(map(len, lists.values()))


def works_of(chunk: Chunk) -> list[ChunkWork]:
    """Of all ranks."""
    return [prepare([chunk], rank=RankId(rank), device=CPU)[0] for rank in range(T)]


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Moves sorted as the planner sorts them; no destination slot is written twice."""
    moves = draw(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(0, T - 1), st.integers(0, T - 1)),
            max_size=20,
            unique=True,
        )
    )
    counts: dict[int, int] = defaultdict(int)
    chunk = []
    for page, src, dst in sorted(moves):
        slot = 20 + counts[dst]
        counts[dst] += 1
        chunk.append(PageMove(PageId(page), RankId(src), SlotId(page), RankId(dst), SlotId(slot)))
    return Chunk.of(chunk)


@given(chunk=chunks())
def test_works_of_all_ranks_together_are_the_chunk(chunk: Chunk) -> None:
    works = works_of(chunk)
    done = set()
    for rank, work in enumerate(works):
        read = work.read_slots.tolist()
        for row, slot in enumerate(work.write_slots.tolist(), start=work.num_sent):
            if row < work.num_read:
                done.add((rank, read[row], rank, slot))
                continue
            src = next(peer for peer, (first, end) in work.recvs.items() if first <= row < end)
            sent_from, sent_to = works[src].sends[RankId(rank)]
            first, end = work.recvs[src]
            assert sent_to - sent_from == end - first, "what one sends is what the other receives"
            source = works[src].read_slots[sent_from + row - first].item()
            done.add((src, source, rank, slot))
    assert done == {(move.src, move.src_slot, move.dst, move.dst_slot) for move in chunk}


@given(chunk=chunks())
def test_a_rank_finds_what_is_for_it_among_what_a_peer_sends(chunk: Chunk) -> None:
    works = works_of(chunk)
    for rank, work in enumerate(works):
        assert work.found_at == {peer: works[peer].sends[RankId(rank)] for peer in work.recvs}


def test_a_gather_to_all_reads_each_page_once() -> None:
    chunk = Chunk.of(
        PageMove(PageId(page), RankId(0), SlotId(page), RankId(dst), SlotId(30 + page))
        for page in range(5)
        for dst in range(1, T)
    )
    work = works_of(chunk)[0]
    assert work.read_slots.tolist() == [0, 1, 2, 3, 4]
    assert work.num_rows == 5


def test_staging_is_kept_and_grows() -> None:
    staging = Staging(CPU)
    pages = torch.zeros(9, 2, 3, dtype=torch.float64)
    first = staging.rows(0, 4, pages)
    assert first.shape == (4, 2, 3)
    assert staging.rows(0, 2, pages).data_ptr() == first.data_ptr()
    assert staging.rows(1, 2, pages).data_ptr() != first.data_ptr()
    assert staging.rows(0, 50, pages).shape == (50, 2, 3)
    assert staging.rows(0, 0, pages).shape == (0, 2, 3)


def test_chunks_under_way_fit_into_the_staging_memory() -> None:
    assert STAGING_PARTS * chunk_bytes(1 << 20) == 1 << 20
