"""One engine's writes to one peer: a small window of pieces in flight, each asked for until its final state.

Invariant: pieces in flight never overlap at their destination, so bytes land as if written in order; a piece
leaves the window with its final state only, for after that the library knows its number no more.
"""

import time
from dataclasses import dataclass

from splash_core.transport.base import Descriptor
from splash_core.transport.mooncake_engine import MooncakeEngine
from splash_core.transport.mooncake_op import MooncakeOp
from splash_core.units import MIB

WINDOW_BYTES = 8 * MIB
"""In flight at once: enough to keep the wire busy, so few that a more urgent write waits milliseconds."""
WINDOW_PIECES = 256
"""The library queues about a thousand a peer and refuses more."""


@dataclass(frozen=True, slots=True)
class WireRoute:
    """From our memory to a peer's: what turns offsets into addresses."""

    segment: str
    """Name of the peer's receiving engine."""
    src_base: int
    dst_base: int


@dataclass(frozen=True, slots=True)
class Flight:
    """A piece that the engine has."""

    op: MooncakeOp
    piece: Descriptor
    number: int


class Wire:
    """Submits and asks; used by one thread."""

    def __init__(self, engine: MooncakeEngine, route: WireRoute) -> None:
        self._engine = engine
        self._route = route
        self._flights: list[Flight] = []
        self._last_news = 0.0

    @property
    def busy(self) -> bool:
        """True while pieces are in flight."""
        return bool(self._flights)

    @property
    def silent_s(self) -> float:
        """Seconds since something was submitted or reached its final state."""
        return time.monotonic() - self._last_news

    def fits(self, piece: Descriptor) -> bool:
        """Whether the window has room for it now."""
        if not self._flights:
            return True
        in_flight = sum(flight.piece.num_bytes for flight in self._flights)
        if len(self._flights) >= WINDOW_PIECES or in_flight + piece.num_bytes > WINDOW_BYTES:
            return False
        end = piece.dst + piece.num_bytes
        return all(
            end <= flight.piece.dst or flight.piece.dst + flight.piece.num_bytes <= piece.dst
            for flight in self._flights
        )

    def submit(self, op: MooncakeOp, piece: Descriptor) -> bool:
        """Begin a piece; False if the engine refuses it. The first to a hung peer may block for a minute."""
        route = self._route
        number = self._engine.submit(
            route.segment, route.src_base + piece.src, route.dst_base + piece.dst, piece.num_bytes
        )
        self._last_news = time.monotonic()
        if number == 0:
            return False
        self._flights.append(Flight(op, piece, number))
        return True

    def landed(self) -> tuple[list[Flight], list[Flight]]:
        """Pieces that have reached their final state since the last call: (written, failed)."""
        written: list[Flight] = []
        failed: list[Flight] = []
        pending: list[Flight] = []
        for flight in self._flights:
            code = self._engine.status(flight.number)
            (pending if code == 0 else written if code == 1 else failed).append(flight)
        if len(pending) < len(self._flights):
            self._last_news = time.monotonic()
        self._flights = pending
        return written, failed

    def abandon(self) -> None:
        """Ask no more; only a fence tells now what has become of the pieces in flight."""
        self._flights = []

    def end(self) -> None:
        """End the engine."""
        self._engine.end()
