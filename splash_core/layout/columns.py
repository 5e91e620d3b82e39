"""Ids side by side: what a large switch says of its tens of thousands of pages.

Slots are 32-bit integers, pages 64-bit ones: a page's id is never used again while its group lives.
A list of objects costs a step a microsecond for each; columns are cut, joined, compared and sent as a whole.
Invariant: whoever has made a column changes it no more once it is part of a value.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

Column: TypeAlias = "array[int]"

_SLOTS, _PAGES = "i", "q"


def column(entries: Iterable[int] = ()) -> Column:
    """The entries, which are slots, as a column."""
    return array(_SLOTS, entries)


def page_column(entries: Iterable[int] = ()) -> Column:
    """The entries, which are pages, as a column."""
    return array(_PAGES, entries)


def joined(columns: Iterable[Column]) -> Column:
    """One column of slots after the other."""
    return _put_together(column(), columns)


def joined_pages(columns: Iterable[Column]) -> Column:
    """One column of pages after the other."""
    return _put_together(page_column(), columns)


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


def _put_together(whole: Column, parts: Iterable[Column]) -> Column:
    for part in parts:
        whole += part
    return whole


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
