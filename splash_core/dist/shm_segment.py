"""The shared memory under `ShmComm`: who writes which word, and where each channel's buffers lie.

Invariant: every word has one writer (doorbells excepted, where any change counts), so nothing needs an
atomic read-modify-write. A chunk's bytes are stored before its sequence number, and x86 keeps that order
for the reader (TSO); on other machines this file must not be used.

A channel carries chunks from one rank to its readers through two buffers. `T` of them broadcast (source →
everybody else) and `T·T` are pairwise. Memory is touched only where a channel is used.
"""

import ctypes
import mmap
import os
from dataclasses import dataclass

from splash_core.dist.fd_passing import anonymous_file
from splash_core.errors import ConfigError
from splash_core.units import KIB

CHUNK_BYTES = 256 * KIB
"""Room of one channel buffer; longer messages travel in several chunks."""

LINE_WORDS = 8
"""64-bit words of a cache line: words of different writers never share one."""

_LINE_BYTES = LINE_WORDS * 8
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlace:
    """Where one channel lies: indices are 64-bit words of the segment, `buffers` is a byte offset."""

    source: int
    readers: tuple[int, ...]
    head: int
    """Written by the source: chunks written so far, then (bytes, tag) of the chunk in either buffer."""
    acks: tuple[int, ...]
    """Per reader, written by it: chunks read so far."""
    buffers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMap:
    """The layout of a segment, computed alike by all ranks."""

    num_ranks: int
    doorbells: tuple[int, ...]
    """Per rank: changed by whoever has news for it; the word that it sleeps on."""
    asleep: tuple[int, ...]
    """Per rank, written by it: 1 while it sleeps (or is about to) on its doorbell."""
    closed: tuple[int, ...]
    """Per rank, written by it: 1 once it makes no further call."""
    broadcast: tuple[ChannelPlace, ...]
    pairs: tuple[tuple[ChannelPlace, ...], ...]
    """`pairs[source][reader]`."""
    total_bytes: int

    @classmethod
    def build(cls, num_ranks: int) -> "SegmentMap":
        """The map for a group of `num_ranks`."""
        ranks = range(num_ranks)
        readers_of = [tuple(other for other in ranks if other != rank) for rank in ranks]
        shapes = [(rank, readers_of[rank]) for rank in ranks]
        shapes += [(source, (reader,)) for source in ranks for reader in ranks]
        lines = 3 * num_ranks + sum(1 + len(readers) for _, readers in shapes)
        header_bytes = -(-lines * _LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES
        places: list[ChannelPlace] = []
        line = 3 * num_ranks
        for index, (source, readers) in enumerate(shapes):
            acks = tuple((line + 1 + turn) * LINE_WORDS for turn in range(len(readers)))
            places.append(
                ChannelPlace(
                    source=source,
                    readers=readers,
                    head=line * LINE_WORDS,
                    acks=acks,
                    buffers=header_bytes + index * 2 * CHUNK_BYTES,
                )
            )
            line += 1 + len(readers)
        rest = places[num_ranks:]
        return cls(
            num_ranks=num_ranks,
            doorbells=tuple((3 * rank) * LINE_WORDS for rank in ranks),
            asleep=tuple((3 * rank + 1) * LINE_WORDS for rank in ranks),
            closed=tuple((3 * rank + 2) * LINE_WORDS for rank in ranks),
            broadcast=tuple(places[:num_ranks]),
            pairs=tuple(tuple(rest[rank * num_ranks : (rank + 1) * num_ranks]) for rank in ranks),
            total_bytes=header_bytes + len(shapes) * 2 * CHUNK_BYTES,
        )


def create_segment(num_ranks: int) -> int:
    """A zeroed anonymous segment for `num_ranks`; returns its file descriptor. It has no name to leak."""
    return anonymous_file("splash-comm", SegmentMap.build(num_ranks).total_bytes)


class Segment:
    """A mapped segment, unmapped with its last reference. `fd` may be closed once this exists."""

    def __init__(self, fd: int, num_ranks: int) -> None:
        self.map = SegmentMap.build(num_ranks)
        size = os.fstat(fd).st_size
        if size != self.map.total_bytes:
            raise ConfigError(
                f"the segment has {size} bytes, {num_ranks} ranks need {self.map.total_bytes}: "
                "all ranks must run the same version with the same number of ranks"
            )
        self._memory = mmap.mmap(fd, size)
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._anchor)
        self.words = memoryview(self._memory).cast("Q")
