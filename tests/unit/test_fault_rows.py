"""The rows of the fault matrix, and the document of what came of them."""

import pytest

from tests.faults.matrix import PLAYS, Played
from tests.faults.rows import DECODE_SWITCHES, GONE, MATRIX, PREFILL_SWITCHES, Row, cases
from tests.faults.tally import not_reached, rows_of


def test_every_row_has_a_play_and_the_same_seed_gives_the_same_cases() -> None:
    assert [row.name for row in MATRIX] == list(dict.fromkeys(PLAYS))
    for row in MATRIX:
        first, again, other = (tuple(cases(row, seed=seed, repetitions=30)) for seed in (1, 1, 2))
        assert first == again
        assert [case.draw().random() for case in first] == [case.draw().random() for case in again]
        assert [case.draw().random() for case in first] != [case.draw().random() for case in other]
        assert {case.point for case in first} == set(row.points)


@pytest.mark.parametrize("row", [PREFILL_SWITCHES, DECODE_SWITCHES], ids=lambda row: row.name)
def test_switches_go_through_all_twelve_directions_and_end_where_they_began(row: Row) -> None:
    played = [case.point.split(">") for case in cases(row, seed=1, repetitions=5)]
    assert len({tuple(point) for point in played}) == len(played) == 12
    assert [target for _, target in played] == [source for source, _ in played[1:] + played[:1]]


def test_the_document_counts_what_held_and_names_what_did_not() -> None:
    first, second, *_ = cases(GONE, seed=1, repetitions=5)
    results = [
        ("shm", Played(case=first, seconds=1.0, failure="")),
        ("shm", Played(case=second, seconds=3.0, failure="AssertionError: still\n  held")),
    ]
    (row,) = rows_of(results, MATRIX)
    assert (row["transport"], row["fault"], row["points"]) == ("shm", "gone", 2)
    assert (row["repetitions"], row["held"], row["seconds_p50"], row["seconds_max"]) == (2, 1, 2.0, 3.0)
    failure = {"number": 1, "point": second.point, "failure": "AssertionError: still held"}
    assert row["failures"] == [failure]
    assert not_reached(results, [GONE], ["shm", "mooncake"], 2) == ["mooncake gone: 0 of 2 repetitions"]
