"""Writes to one peer, by a thread and an engine of their own: what holds one peer up holds up no other.

A session is used until something fails, and never again: its writes are drained to their final states, the
peer ends its receiving end (the fence), and the next write opens a fresh session under a fresh name.
Invariant: after the fence no byte of this session can land; before it, no operation with a failed piece is
quiesced.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from splash_core.errors import SplashError
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.base import Descriptor, Peer
from splash_core.transport.classes import TrafficClass
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.mooncake_link import PeerLink
from splash_core.transport.mooncake_op import MooncakeOp
from splash_core.transport.mooncake_wire import Flight, Wire
from splash_core.transport.turns import Turns

_log = logging.getLogger("splash.transport")
_POLL_S = 0.0002
_FENCE_PAUSE_S = 0.25
_LOOK_S = 0.02
"""Longest time between two looks while nobody's turn comes."""


class Session:
    """One session; its thread ends when it is closed, or broken and fenced."""

    def __init__(
        self,
        link: PeerLink,
        *,
        start_wire: Callable[[PeerLink], Wire],
        patience_s: float,
        arbiter: BandwidthArbiter,
        vitals: VitalThreads | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            link: its control channel, opened; closed with the session.
            start_wire: makes what carries its bytes, at the first write.
            patience_s: the longest wait for any news of what is in flight; the library's own timeouts should
                be shorter.
            arbiter: of the link that its writes use.
            vitals: of the rank, which ends when this session cannot even give up; None: nobody looks.
        """
        self.peer = Peer(address=str(link.address), num_bytes=link.welcome.num_bytes)
        self._link = link
        self._start_wire = start_wire
        self._patience_s = patience_s
        self._arbiter = arbiter
        self._granted: deque[MooncakeOp] = deque()
        """Operations that may submit something, in the order in which their turns came."""
        self._awake = threading.Event()
        self._wire: Wire | None = None
        self._changed = threading.Condition()
        self._ops: list[MooncakeOp] = []
        self._trouble = ""
        self._closing = False
        self._thread = (vitals or VitalThreads()).errand(
            f"mooncake session with {self.peer.address}", self._work
        )

    @property
    def usable(self) -> bool:
        """False once something has failed: open another session."""
        return not self._trouble and self._thread.is_alive() and not self._link.lost()

    @property
    def ended(self) -> bool:
        """True when everything that was begun is quiet and its thread has gone."""
        return not self._thread.is_alive()

    def write(
        self, descriptors: Sequence[Descriptor], *, traffic: TrafficClass, deadline_s: float, attempt: int
    ) -> MooncakeOp:
        """Queue a write; it fails at once if the session cannot be used any more."""
        with self._changed:
            flow = self._arbiter.flow(
                traffic,
                deadline_s=deadline_s,
                num_bytes=sum(descriptor.num_bytes for descriptor in descriptors),
                wake=self._awake.set,
            )
            op = MooncakeOp(
                descriptors,
                turns=Turns(flow),
                piece_bytes=self._arbiter.chunk_bytes,
                deadline=time.monotonic() + deadline_s,
                attempt=attempt,
                changed=self._changed,
            )
            if self._trouble or self._closing:
                op.fail(self._trouble or f"the session with {self.peer.address} was closed")
                op.turns.end()
            else:
                self._ops.append(op)
            self._wake()
        return op

    def close(self, *, drain: bool) -> None:
        """Finish or cancel what was begun, and end; `join` waits for it."""
        with self._changed:
            self._closing = True
            if not drain:
                for op in self._ops:
                    op.cancel()
            self._wake()

    def join(self) -> None:
        """Wait until all is quiet and the thread has ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._work_once()
                except Exception as error:
                    # Whatever the library throws: what was begun must end all the same, with its fence.
                    self._give_up(error)
        finally:
            # In this order: the engine's connections first, then the peer's receiving end.
            if self._wire is not None:
                self._wire.end()
            self._link.close()

    def _work_once(self) -> None:
        if self._trouble and not self._busy:
            self._fence()
        elif self._trouble:
            self._drain()
        else:
            self._submit()
            self._drain()

    def _give_up(self, error: Exception) -> None:
        """Nothing is known of what is in flight any more: only the fence tells."""
        _log.error("writes to %s stopped", self.peer.address, exc_info=error)
        if self._wire is not None:
            self._wire.abandon()
        if self._trouble:
            # While draining or fencing: again, but not at once.
            time.sleep(_FENCE_PAUSE_S)
        else:
            self._break(f"writes to {self.peer.address} stopped: {type(error).__name__}: {error}")

    @property
    def _busy(self) -> bool:
        return self._wire is not None and self._wire.busy

    def _wait_for_work(self) -> bool:
        """True when something is to be written, drained or fenced; False at the session's end."""
        with self._changed:
            while True:
                for op in [op for op in self._ops if op.quiesced]:
                    op.turns.end()
                    self._ops.remove(op)
                if self._ops:
                    return True
                if self._closing or self._trouble:
                    return False
                self._changed.wait()

    def _submit(self) -> None:
        """Hand out pieces until the window is full, of operations whose turn it is."""
        try:
            wire = self._wire = self._wire or self._start_wire(self._link)
        except SplashError as error:
            self._break(str(error))
            return
        while True:
            with self._changed:
                op = self._next_op()
                if op is None or not wire.fits(op.peek()):
                    return
                if not wire.busy and self._link.lost():
                    self._break(self._cause())
                    return
                piece = op.take()
            if not wire.submit(op, piece):
                with self._changed:
                    op.failed(f"the transfer engine refuses writes to {self.peer.address}")
                    self._break(f"the transfer engine refuses writes to {self.peer.address}")
                return

    def _next_op(self) -> MooncakeOp | None:
        """Let all stand in line at the link, then see who may submit."""
        waiting = {op.turns.flow: op for op in self._ops if op.has_more}
        for op in waiting.values():
            op.turns.ask(op.next_bytes(self._arbiter.chunk_bytes))
        while (flow := self._arbiter.first(waiting)) is not None:
            waiting[flow].turns.grant()
            self._granted.append(waiting[flow])
        while self._granted and not (self._granted[0].has_more and self._granted[0].turns.allowed):
            self._granted.popleft()
        return self._granted[0] if self._granted else None

    def _wake(self) -> None:
        """Something has come in: the thread waits for work, or for a turn."""
        self._awake.set()
        self._changed.notify_all()

    def _drain(self) -> None:
        """Learn what has become of the pieces in flight; with none, wait for a turn."""
        wire = self._wire
        if wire is None or not wire.busy:
            self._awake.wait(min(self._arbiter.delay_s(), _LOOK_S))
            self._awake.clear()
            return
        written, failed = wire.landed()
        with self._changed:
            for flight in written:
                flight.op.written(flight.piece.num_bytes)
            if failed:
                self._fail(failed)
            elif wire.busy and wire.silent_s > self._patience_s:
                wire.abandon()
                self._break(f"nothing is heard of writes to {self.peer.address} for {self._patience_s:g} s")
        if wire.busy:
            time.sleep(_POLL_S)

    def _fail(self, flights: Sequence[Flight]) -> None:
        cause = self._cause()
        for flight in flights:
            flight.op.failed(cause)
        self._break(cause)

    def _cause(self) -> str:
        if self._link.gone():
            return f"the process that serves {self.peer.address} has ended, or has ended this session"
        return f"the connection to {self.peer.address} was cut, or its bytes did not move"

    def _break(self, cause: str) -> None:
        """The session is used no more: what waits fails now, what is in flight when it is quiet."""
        with self._changed:
            self._trouble = cause
            for op in self._ops:
                op.fail(cause)

    def _fence(self) -> None:
        """Wait for proof that nothing of this session can land any more."""
        _log.warning("%s; waiting until nothing of it can land any more", self._trouble)
        while not self._link.over():
            time.sleep(_FENCE_PAUSE_S)
        with self._changed:
            for op in self._ops:
                op.fenced()
