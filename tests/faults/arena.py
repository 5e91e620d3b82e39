"""A look into a rank's arena from outside, and a hand in it: how late writes are caught.

Invariant: only slots that the group's audit calls free are ever written here.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATTERN = 0xA5
_NAME = "splash-arena"


class Arena:
    """The mapped memory of one rank."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int) -> None:
        self._memory = memory
        self._slot_bytes = slot_bytes

    def mark(self, slots: Sequence[int]) -> None:
        """Fill slots with the pattern."""
        for slot in slots:
            self._memory[self._part(slot)] = bytes([PATTERN]) * self._slot_bytes

    def touched(self, slots: Sequence[int]) -> list[int]:
        """Marked slots that somebody has written since."""
        whole = bytes([PATTERN]) * self._slot_bytes
        return [slot for slot in slots if self._memory[self._part(slot)] != whole]

    def _part(self, slot: int) -> slice:
        return slice(slot * self._slot_bytes, (slot + 1) * self._slot_bytes)


@contextmanager
def mapped_arena(pid: int, *, slots: int) -> Iterator[Arena]:
    """Map the arena of a rank process, whatever transport serves it.

    Args:
        pid: of the rank.
        slots: in its arena.
    """
    fd = next(fd for fd in Path(f"/proc/{pid}/fd").iterdir() if _NAME in os.readlink(fd))
    with fd.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size) as memory:
            yield Arena(memory, size // slots)
