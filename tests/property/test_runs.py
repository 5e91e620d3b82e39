"""Runs say exactly which keys each row sees, for any table, row set and cut."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from splash_core.attention.batch import PADDING, BatchSequence
from splash_core.attention.runs import Runs, paged_runs, staged_runs
from splash_core.ids import SeqId
from splash_core.layout.ownership import NO_SLOT

PAGE = 4


@st.composite
def batches(draw: st.DrawFn) -> tuple[SimpleNamespace, np.ndarray]:
    """A batch as `paged_runs` reads it, and some of its rows; pages may be elsewhere, rows may be padding."""
    sequences, rows = [], []
    slot = 0
    for index in range(draw(st.integers(0, 4))):
        start, count = draw(st.integers(0, 19)), draw(st.integers(1, 9))
        pages = -(-(start + count) // PAGE)
        table = np.full((pages, 2), NO_SLOT)
        for page in range(pages):
            if draw(st.booleans()):
                table[page, 1] = slot
                slot += 1
        sequences.append(
            BatchSequence(seq=SeqId(index), start=start, count=count, sample=False, table_PT=table)
        )
        rows.extend((index, position) for position in range(start, start + count))
    rows.extend([(PADDING, 0)] * draw(st.integers(0, 2)))
    if draw(st.booleans()):
        rows = draw(st.permutations(rows))
    batch = SimpleNamespace(
        rank=1,
        page_size=PAGE,
        sequences=tuple(sequences),
        sequence_N=np.array([row[0] for row in rows], dtype=np.int64),
        position_N=np.array([row[1] for row in rows], dtype=np.int64),
    )
    picked = [row for row in range(len(rows)) if draw(st.booleans())]
    return batch, np.array(picked, dtype=np.int64)


def wanted_keys(batch: SimpleNamespace, row: int) -> list[tuple[int, int]]:
    """(slot, offset) of each key that a row sees on the rank, in order."""
    if batch.sequence_N[row] == PADDING:
        return []
    table = batch.sequences[batch.sequence_N[row]].table_PT
    positions = range(batch.position_N[row] + 1)
    return [(table[p // PAGE, 1], p % PAGE) for p in positions if table[p // PAGE, 1] != NO_SLOT]


def keys_by_row(runs: Runs) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for first, count, num_keys, page in zip(
        *(values.tolist() for values in (runs.first_R, runs.count_R, runs.num_keys_R, runs.page_R)),
        strict=True,
    ):
        assert count == 1 or num_keys >= count
        for row in range(count):
            seen = num_keys - (count - 1 - row)
            found[first + row] = [
                (int(runs.slots_M[page + key // runs.page_size]), key % runs.page_size) for key in range(seen)
            ]
    assert list(found) == list(range(runs.num_rows)), "each row once, in order"
    return found


@given(batches(), st.integers(1, 7))
def test_paged_runs_give_each_row_its_keys(drawn: tuple[SimpleNamespace, np.ndarray], max_rows: int) -> None:
    batch, rows_N = drawn
    want = {index: wanted_keys(batch, row) for index, row in enumerate(rows_N)}
    runs = paged_runs(batch, rows_N)  # pyright: ignore[reportArgumentType]
    assert keys_by_row(runs) == want
    assert keys_by_row(runs.as_single_rows()) == want
    cut: dict[int, list[tuple[int, int]]] = {}
    for rows, piece in runs.pieces(max_rows):
        assert rows.stop - rows.start == piece.num_rows <= max_rows
        cut.update({row + rows.start: keys for row, keys in keys_by_row(piece).items()})
    assert cut == want
    for wanted_R in (runs.count_R == 1, runs.count_R > 1):
        picked = keys_by_row(runs.select(wanted_R))
        assert [picked[row] for row in range(len(picked))] == [want[row] for row in runs.rows_of(wanted_R)]


@given(batches())
def test_staged_runs_give_each_row_its_keys(drawn: tuple[SimpleNamespace, np.ndarray]) -> None:
    batch, rows_N = drawn
    shift = 0
    staged = {}
    for index, sequence in enumerate(batch.sequences):
        staged[index] = (np.arange(sequence.end)[::-1] + shift, np.arange(sequence.end))
        shift += sequence.end
    runs = staged_runs(batch, rows_N, staged)  # pyright: ignore[reportArgumentType]
    for row, keys in keys_by_row(runs).items():
        index = batch.sequence_N[rows_N[row]]
        if index == PADDING:
            assert keys == []
        else:
            rows_K, _ = staged[index]
            assert keys == [(slot, 0) for slot in rows_K[: batch.position_N[rows_N[row]] + 1]]


def test_a_prefill_is_one_run_and_a_stripe_is_cut_at_foreign_pages() -> None:
    table = np.array([[0, 7], [1, NO_SLOT], [2, 8]])
    sequence = BatchSequence(seq=SeqId(0), start=0, count=12, sample=False, table_PT=table)
    batch = SimpleNamespace(
        rank=0,
        page_size=PAGE,
        sequences=(sequence,),
        sequence_N=np.zeros(12, dtype=np.int64),
        position_N=np.arange(12),
    )
    whole = paged_runs(batch, np.arange(12))  # pyright: ignore[reportArgumentType]
    assert (whole.first_R.tolist(), whole.count_R.tolist(), whole.num_keys_R.tolist()) == ([0], [12], [12])
    batch.rank = 1
    stripe = paged_runs(batch, np.arange(12))  # pyright: ignore[reportArgumentType]
    # Rows of the foreign page see 4 keys each; the last of them begins a run with the page that follows.
    assert stripe.count_R.tolist() == [4, 1, 1, 1, 5]
    assert stripe.num_keys_R.tolist() == [4, 4, 4, 4, 8]
