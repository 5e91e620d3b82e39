"""One write of the single-host transport: its chunks, where they go, and its state.

A chunk is what one turn at the link allows: a piece of a long page range, or several short ones. Invariant:
the write is quiesced only when its state is final and no chunk of it is under way.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from splash_core.dist.process_watch import ProcessWatch
from splash_core.errors import InvariantBroken
from splash_core.transport.base import Descriptor, OpState, Peer
from splash_core.transport.guarded_op import GuardedOp
from splash_core.transport.link import LinkFlow
from splash_core.transport.memory import Target


@dataclass(slots=True, kw_only=True, eq=False)
class Mapping:
    """A peer's memory in our address space, and the process that owns it."""

    peer: Peer
    memory: Target
    owner: ProcessWatch
    released: bool = False

    def release(self) -> None:
        """Unmap it: its owner has ended (which stays known), or we are about to."""
        if not self.released:
            self.released = True
            self.memory.release()
            self.owner.close()


class ShmOp(GuardedOp):
    """One write: its pieces, and its state under the transport's lock."""

    def __init__(
        self,
        *,
        target: Mapping,
        chunks: Sequence[Sequence[Descriptor]],
        flow: LinkFlow,
        deadline: float,
        attempt: int,
        changed: threading.Condition,
    ) -> None:
        super().__init__(attempt=attempt, empty=not chunks, changed=changed)
        self.target = target
        self.flow = flow
        self._deadline = deadline
        self._chunks = deque(chunks)
        self._under_way = 0
        self._lost = ""

    @property
    @override
    def quiesced(self) -> bool:
        """As in `Op`.

        Raises:
            InvariantBroken: copying has failed, and nobody can tell any more: the process has to end.
        """
        with self._changed:
            if self._lost and self._under_way:
                raise InvariantBroken(self._lost)
            return self.over

    # What follows is called with the lock held.

    @property
    def over(self) -> bool:
        """True when its state is final and nothing of it is under way."""
        return self._state.is_final and not self._under_way

    @property
    def wants(self) -> bool:
        """True when it has a chunk to send."""
        return bool(self._chunks) and not self._state.is_final

    def look(self, now: float) -> None:
        """Fail if the deadline has passed, even while others go first, or if the peer's process has ended."""
        if now > self._deadline:
            self._expire()
        if self.target.owner.ended():
            self._finish(OpState.FAILED, f"the process that serves {self.target.peer.address} has ended")
        if self.wants:
            self.flow.want(size_of(self._chunks[0]))

    def take_chunk(self) -> Sequence[Descriptor]:
        """The next chunk, to be copied now."""
        self._state = OpState.RUNNING
        self._under_way += 1
        return self._chunks.popleft()

    def chunk_landed(self, num_bytes: int) -> None:
        """A chunk of `take_chunk` is where it should be."""
        self._under_way -= 1
        self.flow.sent()
        self._written += num_bytes
        if not self._chunks and not self._under_way:
            self._finish(OpState.DONE)
        self._changed.notify_all()

    def lose(self, error: str) -> None:
        """Nothing is copied any more, and of what is under way nobody knows."""
        self._lost = error
        self._finish(OpState.FAILED, error)


def size_of(chunk: Sequence[Descriptor]) -> int:
    """Bytes of a chunk."""
    return sum(piece.num_bytes for piece in chunk)


def chunks_of(descriptors: Sequence[Descriptor], most: int) -> list[list[Descriptor]]:
    """The same bytes in the same order, in chunks of at most `most` bytes; empty descriptors are left out."""
    chunks: list[list[Descriptor]] = []
    room = 0
    for piece in (piece for descriptor in descriptors for piece in descriptor.cut(most)):
        if piece.num_bytes > room:
            chunks.append([])
            room = most
        chunks[-1].append(piece)
        room -= piece.num_bytes
    return chunks
