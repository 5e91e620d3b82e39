"""Independent flows in equal chunks, and columns: what is cut as a whole is what it was."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.columns import SlotRows, column, first_difference, joined, page_column
from splash_core.switch.manifest import Chunk, Flow, PageMove, flows_of
from splash_core.switch.packing import merged, pages_by_side, spread

RANKS = st.integers(0, 4).map(RankId)
INTS = st.lists(st.integers(0, 3), max_size=12)


@st.composite
def flow_sets(draw: st.DrawFn) -> list[Flow]:
    """One flow for each of some pairs of ranks, of pages and slots of its own."""
    lengths = draw(st.dictionaries(st.tuples(RANKS, RANKS), st.integers(1, 60), max_size=12))
    flows: list[Flow] = []
    first = 0
    pages = draw(st.sampled_from([0, 2**31 - 20, 2**40]))
    for (src, dst), length in sorted(lengths.items()):
        ids = column(range(first, first + length))
        flows.append(Flow(src, dst, page_column(pages + slot for slot in ids), ids, ids))
        first += length
    return flows


@given(flows=flow_sets(), capacity=st.integers(1, 40))
def test_chunks_hold_the_moves_once_within_capacity(flows: list[Flow], capacity: int) -> None:
    chunks = spread(flows, capacity=capacity)
    assert Counter(move for chunk in chunks for move in chunk) == Counter(
        move for flow in flows for move in flow
    )
    assert all(len(chunk) for chunk in chunks)
    assert all(max(pages_by_side(chunk.flows).values()) <= capacity for chunk in chunks)
    for chunk in chunks:
        pairs = [(flow.src, flow.dst) for flow in chunk.flows]
        assert pairs == sorted(set(pairs)), "one flow a pair, ascending"


@given(flows=flow_sets())
def test_with_room_for_a_share_of_each_flow_chunks_are_as_few_as_can_be_or_nearly(flows: list[Flow]) -> None:
    capacity = 60
    chunks = spread(flows, capacity=capacity)
    most = max(pages_by_side(flows).values(), default=0)
    assert len(chunks) <= -(-most // (capacity - len(flows)))


@given(pages=st.integers(1, 200), peers=st.integers(2, 4), capacity=st.integers(8, 40))
def test_pages_for_all_peers_stay_together(pages: int, peers: int, capacity: int) -> None:
    ids, slots = page_column(range(pages)), column(range(pages))
    flows = [Flow(RankId(0), RankId(peer), ids, slots, slots) for peer in range(1, peers + 1)]
    for chunk in spread(flows, capacity=capacity):
        assert len({tuple(flow.pages) for flow in chunk.flows}) == 1
        assert len(chunk.flows) == peers


@given(flows=flow_sets(), capacity=st.integers(1, 40))
def test_merging_undoes_cutting(flows: list[Flow], capacity: int) -> None:
    parts = flows_of(spread(flows, capacity=capacity))
    assert {(flow.src, flow.dst): sorted(flow.pages) for flow in merged(parts)} == {
        (flow.src, flow.dst): list(flow.pages) for flow in flows
    }


@given(
    moves=st.lists(
        st.builds(
            PageMove,
            st.sampled_from([*range(9), 2**31]).map(PageId),
            RANKS,
            st.just(SlotId(1)),
            RANKS,
            st.just(SlotId(2)),
        )
    )
)
def test_a_chunk_is_its_moves(moves: list[PageMove]) -> None:
    chunk = Chunk.of(moves)
    assert len(chunk) == len(moves)
    assert list(chunk) == sorted(moves, key=lambda move: (move.src, move.dst)), "in order between two ranks"


@given(one=INTS, other=INTS, same=INTS)
def test_first_differences(one: list[int], other: list[int], same: list[int]) -> None:
    left, right = column(same + one), column(same + other)
    found = first_difference(left, right)
    assert left[:found] == right[:found]
    assert found == min(len(left), len(right)) or left[found] != right[found]


@given(rows=st.lists(st.tuples(*[st.integers(-1, 99)] * 3)), cut=st.integers(0, 5))
def test_rows_side_by_side_are_rows(rows: list[tuple[int, ...]], cut: int) -> None:
    table = SlotRows.of(rows, num_ranks=3)
    assert (len(table), list(table)) == (len(rows), rows)
    parts = [SlotRows.of(part, num_ranks=3).slots for part in (rows[:cut], rows[cut:])]
    assert joined(parts) == table.slots
