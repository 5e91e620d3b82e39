"""One rank's access to a shared segment: moves byte streams through channels, and knows when to give up.

Waiting is a short spin (none when ranks outnumber cores, shorter while it does not help), then a futex
sleep in slices, between which the peers' lives and the deadline are checked. Relies on x86-64 memory order
(`shm_segment`). Invariant: a dead, closed or late peer raises `GroupFailed`; nothing waits for ever.
"""

import ctypes
import os
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

from splash_core.dist.futex import Futex
from splash_core.dist.process_watch import ProcessWatch
from splash_core.dist.shm_segment import CHUNK_BYTES, ChannelPlace, Segment
from splash_core.errors import GroupFailed, InvariantBroken
from splash_core.ids import RankId

Span = tuple[int, int]
"""Address and length of a piece of this process's memory."""

_MAX_SPINS = 200
_SPINS_PER_HIT = 10
_SLICE_S = 0.02
_RING_BITS = 24


class ChannelEnd:
    """One end of a channel, kept between calls: how many chunks have passed it."""

    __slots__ = ("acks", "base", "head", "num_chunks", "peers", "place")

    def __init__(self, segment: Segment, place: ChannelPlace, *, reader: int | None = None) -> None:
        self.place = place
        self.head = place.head
        self.base = segment.address + place.buffers
        self.num_chunks = 0
        if reader is None:
            self.acks, self.peers = place.acks, place.readers
        else:
            self.acks, self.peers = (place.acks[place.readers.index(reader)],), (place.source,)


class PortStream:
    """Bytes that pass through one end during one call: its spans joined, cut in chunks."""

    __slots__ = ("end", "incoming", "left", "offset", "spans", "turn")

    def __init__(self, end: ChannelEnd, spans: Sequence[Span], *, incoming: bool) -> None:
        self.end = end
        self.spans = spans
        self.incoming = incoming
        self.turn = 0
        self.offset = 0
        self.left = sum(length for _, length in spans)

    def copy_chunk(self, buffer: int, size: int) -> None:
        """Move the next `size` bytes between the spans and a channel buffer."""
        self.left -= size
        while size:
            address, length = self.spans[self.turn]
            part = min(size, length - self.offset)
            if self.incoming:
                ctypes.memmove(address + self.offset, buffer, part)
            else:
                ctypes.memmove(buffer, address + self.offset, part)
            buffer += part
            size -= part
            self.offset += part
            if self.offset == length:
                self.turn += 1
                self.offset = 0


class ShmPort:
    """A rank's end of every channel; `transfer` is used by one thread at a time.

    Args:
        segment: mapped memory of the group, one segment per communicator.
        rank: this rank.
        pids: process of each rank, watched for its death; those of this process are not watched.
        timeout_s: the longest wait for a peer inside one call.
        spins: most polls before a sleep; by default none when ranks outnumber cores.
    """

    def __init__(
        self,
        segment: Segment,
        rank: RankId,
        *,
        pids: Sequence[int],
        timeout_s: float,
        spins: int | None = None,
    ) -> None:
        self._segment = segment
        self._map = segment.map
        self._words = segment.words
        self._rank = rank
        self._timeout_s = timeout_s
        cores = len(os.sched_getaffinity(0))
        self._max_spins = (_MAX_SPINS if self._map.num_ranks <= cores else 0) if spins is None else spins
        self._spins = self._max_spins
        self._futex = Futex()
        self._fence = threading.Lock()
        self._in_call = threading.Lock()
        self._rings = 0
        self._bell = self._map.doorbells[rank]
        self._watches = {
            peer: ProcessWatch(pid) for peer, pid in enumerate(pids) if peer != rank and pid != os.getpid()
        }
        others = [peer for peer in range(self._map.num_ranks) if peer != rank]
        self.to_all = ChannelEnd(segment, self._map.broadcast[rank])
        self.from_each: Mapping[int, ChannelEnd] = {
            peer: ChannelEnd(segment, self._map.broadcast[peer], reader=rank) for peer in others
        }
        self.to_peer: Mapping[int, ChannelEnd] = {
            peer: ChannelEnd(segment, self._map.pairs[rank][peer]) for peer in others
        }
        self.from_peer: Mapping[int, ChannelEnd] = {
            peer: ChannelEnd(segment, self._map.pairs[peer][rank], reader=rank) for peer in others
        }
        self._tags: dict[str, int] = {}
        self._closed = False

    @property
    def num_ranks(self) -> int:
        """T."""
        return self._map.num_ranks

    def close(self) -> None:
        """Tell the peers and make a transfer in progress (in another thread) raise.

        The memory is unmapped with the last reference to this object, so that no thread finds it gone.
        """
        if self._closed:
            return
        self._closed = True
        self._words[self._map.closed[self._rank]] = 1
        self._ring(range(self.num_ranks))
        with self._in_call:
            for watch in self._watches.values():
                watch.close()

    def transfer(self, streams: Iterable[PortStream], tag: str) -> None:
        """Move all streams to their end, whichever is ready first."""
        if not self._in_call.acquire(blocking=False):
            raise InvariantBroken(f"{tag}: another thread is inside a call of this communicator")
        try:
            self._drive([stream for stream in streams if stream.left], tag)
        finally:
            self._in_call.release()

    def _drive(self, pending: list[PortStream], tag: str) -> None:
        stamp = self._tags.setdefault(tag, zlib.crc32(tag.encode()))
        started = 0.0
        spins = 0
        lost: list[int] = []
        while True:
            if self._closed:
                raise InvariantBroken(f"{tag}: the communicator was closed")
            if not pending:
                return
            seen = self._words[self._bell]
            moved = [stream for stream in pending if self._step(stream, stamp, tag)]
            if moved:
                pending = [stream for stream in pending if stream.left]
                if spins:
                    self._spins = min(self._spins + _SPINS_PER_HIT, self._max_spins)
                spins, started, lost = 0, 0.0, []
            elif spins < self._spins:
                spins += 1
            elif lost:
                raise GroupFailed(f"rank {self._rank} waits in {tag} for ranks {lost}, which have ended")
            else:
                # A spin that ends in sleep was wasted, perhaps on the very core that the peer needs.
                self._spins //= 2
                spins = 0
                started = started or time.monotonic()
                lost = self._sleep(seen, pending)
                self._check_patience(started, pending, tag)

    def _check_patience(self, started: float, pending: Sequence[PortStream], tag: str) -> None:
        if time.monotonic() - started > self._timeout_s:
            peers = sorted({peer for stream in pending for peer in stream.end.peers})
            raise GroupFailed(f"rank {self._rank} waited {self._timeout_s:g} s in {tag} for ranks {peers}")

    def _step(self, stream: PortStream, stamp: int, tag: str) -> bool:
        """Pass as many chunks as the channel takes now; False if none."""
        words, end = self._words, stream.end
        before = end.num_chunks
        while stream.left:
            size = min(stream.left, CHUNK_BYTES)
            side = end.num_chunks & 1
            meta = end.head + 1 + 2 * side
            if stream.incoming:
                if words[end.head] == end.num_chunks:
                    break
                if words[meta] != size or words[meta + 1] != stamp:
                    raise InvariantBroken(
                        f"rank {self._rank} in {tag} expects {size} bytes, rank {end.peers[0]} sent "
                        f"{words[meta]}{'' if words[meta + 1] == stamp else ' in another collective'}"
                    )
                stream.copy_chunk(end.base + side * CHUNK_BYTES, size)
                end.num_chunks += 1
                words[end.acks[0]] = end.num_chunks
            else:
                if any(end.num_chunks - words[ack] >= 2 for ack in end.acks):
                    break
                stream.copy_chunk(end.base + side * CHUNK_BYTES, size)
                words[meta] = size
                words[meta + 1] = stamp
                end.num_chunks += 1
                words[end.head] = end.num_chunks
            self._ring(end.peers)
        return end.num_chunks != before

    def _ring(self, peers: Iterable[int]) -> None:
        """Tell peers that something changed, and wake those that sleep."""
        self._rings = (self._rings + 1) & ((1 << _RING_BITS) - 1)
        for peer in peers:
            # No two ranks ever store the same value here, so a sleeper cannot mistake news for none.
            self._words[self._map.doorbells[peer]] = (self._rank << _RING_BITS) | self._rings
            # A locked instruction: the store above must be visible before `asleep` is read. The sleeper
            # does the reverse (says that it sleeps, then the kernel compares the bell).
            with self._fence:
                pass
            if self._words[self._map.asleep[peer]]:
                self._futex.wake(self._segment.address + 8 * self._map.doorbells[peer])

    def _sleep(self, seen: int, pending: Sequence[PortStream]) -> list[int]:
        """Sleep until the bell differs from `seen` or a slice is over; the needed peers that have ended."""
        asleep = self._map.asleep[self._rank]
        self._words[asleep] = 1
        self._futex.wait(self._segment.address + 8 * self._bell, seen, _SLICE_S)
        self._words[asleep] = 0
        if self._words[self._bell] != seen:
            return []
        return sorted({peer for stream in pending for peer in stream.end.peers if self._has_ended(peer)})

    def _has_ended(self, peer: int) -> bool:
        watch = self._watches.get(peer)
        dead = watch is not None and watch.ended()
        return dead or bool(self._words[self._map.closed[peer]])
