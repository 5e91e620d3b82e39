"""The demo's walk takes every directed pair once and comes back."""

from itertools import pairwise, permutations

import pytest

from services.demo.circuit import directed_circuit

LAYOUTS = ("TP", "CP", "DP", "DOP")


@pytest.mark.parametrize("start", LAYOUTS)
def test_circuit_takes_all_twelve_switches_and_returns(start: str) -> None:
    edges = directed_circuit(LAYOUTS, start)
    assert len(edges) == 12
    assert set(edges) == set(permutations(LAYOUTS, 2))
    assert edges[0][0] == edges[-1][1] == start
    assert all(before[1] == after[0] for before, after in pairwise(edges))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_circuit_of_any_size(size: int) -> None:
    edges = directed_circuit(range(size), 0)
    assert sorted(edges) == sorted(permutations(range(size), 2))
