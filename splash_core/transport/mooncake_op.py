"""One write over Mooncake: its pieces, and what is known of each.

    waiting ──take──▶ in flight ──written──▶ counted
                          └──────failed───▶ doubtful ──fence──▶ over

A failed piece is not a quiet one: its bytes may lie in buffers on the way and land later. Invariant: an
operation is quiesced only when its state is final, no piece is in flight and none is doubtful; nothing takes
that back.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from typing_extensions import override

from splash_core.transport.base import Descriptor, OpState, OpStatus
from splash_core.transport.guarded_op import GuardedOp
from splash_core.transport.turns import Turns


class MooncakeOp(GuardedOp):
    """Its state is guarded by `changed`, which all operations to one peer share."""

    def __init__(
        self,
        descriptors: Sequence[Descriptor],
        *,
        deadline: float,
        attempt: int,
        changed: threading.Condition,
        turns: Turns,
        piece_bytes: int,
    ) -> None:
        waiting = deque(pieces(descriptors, piece_bytes))
        super().__init__(attempt=attempt, empty=not waiting, changed=changed)
        self.turns = turns
        """At the link; the session that writes asks for them."""
        self._waiting = waiting
        self._deadline = deadline
        self._in_flight = 0
        self._doubtful = 0

    @override
    def wait(self, timeout_s: float) -> OpStatus:
        end = time.monotonic() + timeout_s
        with self._changed:
            # The thread that writes may be held up by a peer, so the deadline is looked at here too.
            while not self._status().state.is_final and time.monotonic() < end:
                self._changed.wait(max(0.0, min(end, self._deadline) - time.monotonic()) + 0.001)
            return self._status()

    @property
    @override
    def quiesced(self) -> bool:
        with self._changed:
            return self._status().state.is_final and self._in_flight == 0 and self._doubtful == 0

    # What follows is for the session that writes; it holds the lock.

    @property
    def has_more(self) -> bool:
        """True when there is a piece to take."""
        return bool(self._waiting) and not self._status().state.is_final

    def next_bytes(self, most: int) -> int:
        """Of the next pieces that make up at most `most` bytes together, and of one at least."""
        total = 0
        for piece in self._waiting:
            if total and total + piece.num_bytes > most:
                break
            total += piece.num_bytes
        return total

    def peek(self) -> Descriptor:
        """The piece that `take` would take."""
        return self._waiting[0]

    def take(self) -> Descriptor:
        """Hand out the next piece."""
        self._state = OpState.RUNNING
        self._in_flight += 1
        piece = self._waiting.popleft()
        self.turns.spend(piece.num_bytes)
        return piece

    def written(self, num_bytes: int) -> None:
        """A piece has landed whole."""
        self._in_flight -= 1
        self._written += num_bytes
        self.turns.landed(num_bytes)
        if not self._waiting and self._in_flight == 0 and self._doubtful == 0:
            self._finish(OpState.DONE)
        self._changed.notify_all()

    def failed(self, error: str) -> None:
        """A piece has not landed whole, and more of it may land."""
        self._in_flight -= 1
        self._doubtful += 1
        self.fail(error)

    def fail(self, error: str) -> None:
        """Write no more of it."""
        self._finish(OpState.FAILED, error)

    def fenced(self) -> None:
        """The peer can receive nothing more of what was under way."""
        self._in_flight = self._doubtful = 0
        self._changed.notify_all()

    @override
    def _status(self) -> OpStatus:
        if time.monotonic() > self._deadline:
            self._expire()
        return super()._status()


def pieces(descriptors: Sequence[Descriptor], most: int) -> Iterator[Descriptor]:
    """The same bytes in the same order: neighbours on both sides joined, then cut to `most` bytes each.

    A submission costs tens of microseconds however short it is, so whole runs of pages go together.
    """
    run: Descriptor | None = None
    for descriptor in descriptors:
        if run is None:
            run = descriptor
        elif (run.src + run.num_bytes, run.dst + run.num_bytes) == (descriptor.src, descriptor.dst):
            run = Descriptor(run.src, run.dst, run.num_bytes + descriptor.num_bytes)
        else:
            yield from run.cut(most)
            run = descriptor
    if run is not None:
        yield from run.cut(most)
