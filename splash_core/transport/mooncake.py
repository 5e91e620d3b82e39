"""Writes into other groups' memory over Mooncake's Transfer Engine, on one host or between hosts.

Mooncake is a one-sided pipe; what a handoff needs beside it is ours: bounds, chunks, deadlines, a handshake
of what the memory means, liveness, and above all to know when a failed write has become quiet. Invariant:
every pair of ranks has engines of its own on both sides, so a peer that hangs is trouble of one pair.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from splash_core.errors import InvariantBroken, Unavailable
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.abi import KvAbi
from splash_core.transport.base import Descriptor, MemoryHandle, Op, Peer, TrafficClass, Transport
from splash_core.transport.bounds import check_bounds
from splash_core.transport.link import RankLinks
from splash_core.transport.memory import Memory
from splash_core.transport.mooncake_library import new_engine
from splash_core.transport.mooncake_link import PeerLink
from splash_core.transport.mooncake_probe import Prober
from splash_core.transport.mooncake_server import MooncakeServer
from splash_core.transport.mooncake_session import Session
from splash_core.transport.mooncake_wire import Wire, WireRoute
from splash_core.transport.mooncake_words import Address
from splash_core.transport.options import TransportOptions

_PATIENCE = 5
"""Stall timeouts that a piece may take: the library needs up to three."""


@dataclass(frozen=True, slots=True)
class _Silence:
    """A peer did not answer; until then it is taken to be so still."""

    until: float
    cause: str


class MooncakeTransport(Transport):
    """The `Transport` of ranks that share no memory."""

    def __init__(
        self,
        options: TransportOptions,
        links: RankLinks | None = None,
        *,
        vitals: VitalThreads | None = None,
    ) -> None:
        """Nothing is served or written yet.

        Args:
            options: of the rank's group.
            links: whom writes ask for their turn; None: some of its own, without limits.
            vitals: of the rank, which ends when serving or writing has failed; None: nobody looks.
        """
        self._vitals = vitals or VitalThreads()
        self._options = options
        self._links = links or RankLinks.unlimited()
        self._memory: Memory | None = None
        self._server: MooncakeServer | None = None
        self._prober = Prober(options)
        self._sessions: dict[str, Session] = {}
        self._broken: list[Session] = []
        self._silent: dict[str, _Silence] = {}
        self._lock = threading.Lock()
        self._closing = False

    @override
    def register(self, memory: Memory, abi: KvAbi) -> MemoryHandle:
        if self._server is not None:
            raise InvariantBroken(f"this transport serves {self._server.address} already")
        self._prober.prepare()
        # Writes into pages that the kernel has yet to find run at a tenth of the rate.
        memory.touch()
        self._memory = memory
        self._server = MooncakeServer(memory, abi, self._options, self._vitals)
        return MemoryHandle(address=str(self._server.address), num_bytes=memory.num_bytes)

    @override
    def connected(self, address: str) -> Peer | None:
        with self._lock:
            known = self._sessions.get(address)
        return known.peer if known is not None and known.usable else None

    @override
    def connect(self, address: str, abi: KvAbi) -> Peer:
        known = self.connected(address)
        if known is not None:
            return known
        link = self._open(address, abi)
        stays = self._options.stays_within(link.address.host)
        session = Session(
            link,
            start_wire=self._start_wire,
            patience_s=_PATIENCE * self._options.stall_timeout_s,
            arbiter=self._links.host if stays else self._links.phase,
            vitals=self._vitals,
        )
        self._keep(address, session)
        return session.peer

    @override
    def write(
        self,
        peer: Peer,
        descriptors: Sequence[Descriptor],
        *,
        traffic: TrafficClass,
        deadline_s: float,
        attempt: int,
    ) -> Op:
        if self._memory is None:
            raise InvariantBroken("register the local memory before the first write")
        check_bounds(descriptors, self._memory.num_bytes, peer)
        with self._lock:
            if self._closing:
                raise InvariantBroken(f"write to {peer.address} after the transport was closed")
            session = self._sessions.get(peer.address)
            if session is None:
                raise Unavailable(f"{peer.address} is not connected: its process has ended, or it never was")
            return session.write(descriptors, traffic=traffic, deadline_s=deadline_s, attempt=attempt)

    @override
    def fence(self, writer: str, *, term: int) -> None:
        if self._server is None:
            raise InvariantBroken(f"writer {writer} cannot have begun anything: no memory is registered")
        self._server.fence(writer, term=term)

    @override
    def close(self, *, drain: bool) -> None:
        with self._lock:
            self._closing = True
            sessions = [*self._sessions.values(), *self._broken]
        for session in sessions:
            session.close(drain=drain)
        for session in sessions:
            session.join()
        self._prober.close()
        if self._server is not None:
            self._server.close()

    def _open(self, address: str, abi: KvAbi) -> PeerLink:
        """Shake hands and probe, without the lock: who does not answer must not delay writes to others."""
        silent = self._silent.get(address)
        if silent is not None and time.monotonic() < silent.until:
            raise Unavailable(f"{silent.cause}; that was a moment ago, try later")
        timeout_s, began = self._options.answer_timeout_s, time.monotonic()
        try:
            link = PeerLink.open(Address.parse(address), abi, self._options)
            try:
                self._prober.check(link.welcome.segment)
            except Exception:
                link.close()
                raise
        except Unavailable as error:
            now = time.monotonic()
            if now - began >= timeout_s:
                # Whoever waits here waits for the next push too, so a silent peer is not asked every time.
                self._silent[address] = _Silence(now + timeout_s, str(error))
            raise
        self._silent.pop(address, None)
        return link

    def _keep(self, address: str, session: Session) -> None:
        """Use this session from now on, and let go of those that have failed or whose peer has gone."""
        with self._lock:
            self._broken = [old for old in self._broken if not old.ended]
            for known, old in list(self._sessions.items()):
                if known == address or not old.usable:
                    old.close(drain=True)
                    self._broken.append(old)
                    del self._sessions[known]
            self._sessions[address] = session

    def _start_wire(self, link: PeerLink) -> Wire:
        assert self._memory is not None, "write checks that memory is registered"
        memory, welcome = self._memory, link.welcome
        engine = new_engine(self._options, memory=(memory.address, memory.num_bytes))
        return Wire(engine, WireRoute(welcome.segment, memory.address, welcome.base))
