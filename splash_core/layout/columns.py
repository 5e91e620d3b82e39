"""Ids side by side, as 32-bit integers: what a large switch says of its tens of thousands of pages.

A list of objects costs a step a microsecond for each; columns are cut, joined, compared and sent as a whole.
Invariant: whoever has made a column changes it no more once it is part of a value.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

Column: TypeAlias = "array[int]"

_TYPE = "i"


def column(entries: Iterable[int] = ()) -> Column:
    """The entries as a column."""
    return array(_TYPE, entries)


def joined(columns: Iterable[Column]) -> Column:
    """One column after the other."""
    whole = array(_TYPE)
    for part in columns:
        whole += part
    return whole


def first_difference(one: Column, other: Column) -> int:
    """The first place at which two columns differ, or the length of the shorter one; by few comparisons."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows of a page table: for each page its slot on each rank, or `NO_SLOT`."""

    num_ranks: int
    slots: Column
    """`[pages, T]`, row after row."""

    @classmethod
    def of(cls, rows: Iterable[Iterable[int]], *, num_ranks: int) -> "SlotRows":
        """The rows."""
        return cls(num_ranks, column(chain.from_iterable(rows)))

    def __len__(self) -> int:
        """Pages."""
        return len(self.slots) // self.num_ranks

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """One by one, for whoever looks at few."""
        turns = [self.slots[rank :: self.num_ranks] for rank in range(self.num_ranks)]
        return zip(*turns, strict=True)
