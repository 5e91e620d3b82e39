"""A rank's side of being written to: every writer gets a receiving engine of its own, and can have it ended.

An engine costs a millisecond and two threads. In return a writer's failure is contained: when an engine is
gone, its connections are gone, and no byte that was on the way can land any more. Nothing else that Mooncake
offers proves that. A writer that cannot ask any more is fenced all the same: by its group's incarnation and
term, on our leader's word. Invariant: `fenced` is answered, `fence` returns, and a writer's connection is
closed, only after the engines are gone; what is fenced gets no new one.
"""

import contextlib
import logging
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial

from splash_core.errors import ConfigError, SplashError, Unavailable
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.memory import Memory
from splash_core.transport.mooncake_engine import MooncakeEngine
from splash_core.transport.mooncake_library import new_engine
from splash_core.transport.mooncake_words import Address, Line, Message, NotUnderstood, Welcome, keep_alive
from splash_core.transport.options import TransportOptions

_log = logging.getLogger("splash.transport")
_RETRY_S = 0.01
_HELLO_S = 10.0
"""The most that a new connection may take for its first words."""


@dataclass(frozen=True, slots=True)
class _Inlet:
    """What one session has here."""

    engine: MooncakeEngine
    writer: str
    """Incarnation of the writing group; empty for one that only looks."""
    term: int
    connection: socket.socket


class MooncakeServer:
    """Hands out receiving engines for `memory` until closed."""

    def __init__(
        self, memory: Memory, abi: KvAbi, options: TransportOptions, vitals: VitalThreads | None = None
    ) -> None:
        """Serves from now on; `vitals` are of the rank, which ends when serving has failed."""
        self._memory = memory
        self._abi = abi
        self._options = options
        self._inlets: dict[str, _Inlet] = {}
        self._fenced: dict[str, int] = {}
        """The last term of each writer that may not write any more."""
        self._lock = threading.Lock()
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._socket = _listen(options)
        port = int(self._socket.getsockname()[1])
        self.address = Address(options.host, port, secrets.token_hex(16))
        self._vitals = vitals or VitalThreads()
        self._thread = self._vitals.keep("mooncake server", self._accept)

    def close(self) -> None:
        """End all receiving engines, then listen no more: a refused connection proves that they are gone."""
        self._vitals.release(self._thread)
        with self._lock:
            self._closing = True
            inlets, connections = list(self._inlets.values()), list(self._connections)
        for inlet in inlets:
            inlet.engine.end()
        for connection in [self._socket, *connections]:
            _cut(connection)
        self._thread.join()
        self._socket.close()

    def fence(self, writer: str, *, term: int) -> None:
        """End all sessions of a writer's terms up to this one, and open no more in them."""
        with self._lock:
            self._fenced[writer] = max(term, self._fenced.get(writer, term))
            ended = [
                entry for entry in self._inlets.values() if entry.writer == writer and entry.term <= term
            ]
        for inlet in ended:
            inlet.engine.end()
        # Afterwards: to its writer a closed channel is proof.
        for inlet in ended:
            _cut(inlet.connection)
        _log.warning("writer %s is fenced up to term %d: %d sessions ended", writer, term, len(ended))

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Closed, or out of descriptors for a moment.
                time.sleep(_RETRY_S)
                continue
            self._vitals.errand("receiving end of a mooncake writer", partial(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        """One writer's connection; its end is the end of what it opened."""
        opened: list[str] = []
        with self._lock:
            self._connections.add(connection)
        with connection:
            try:
                keep_alive(connection)
                line = Line(connection)
                timeout_s: float | None = _HELLO_S
                while (message := line.receive(timeout_s)) is not None:
                    line.send(self._answer(message, opened, connection))
                    timeout_s = None
            except (OSError, NotUnderstood) as error:
                _log.info("a writer's connection ended: %s", error)
            except Exception:  # of this writer alone, unless what it opened cannot be ended
                _log.exception("a writer's connection broke")
            finally:
                for session in opened:
                    self._end(session)
                with self._lock:
                    self._connections.discard(connection)

    def _answer(self, message: Message, opened: list[str], connection: socket.socket) -> Message:
        if message.get("incarnation") != self.address.incarnation:
            # Who asks for another life of this address learns that it is over.
            return {"error": "another incarnation", "gone": True}
        if message.get("ask") == "fence":
            self._end(str(message.get("session")))
            return {"fenced": True}
        if message.get("ask") == "open":
            return self._open(message, opened, connection)
        return {"error": f"nothing is known of {message.get('ask')!r}"}

    def _open(self, message: Message, opened: list[str], connection: socket.socket) -> Message:
        ours = self._options.speaks
        writer, term = "", 0
        try:
            alike = message["speaks"] == ours and not abi_diff(self._abi, KvAbi(**message["abi"]))
            writer, term = str(message["writer"]), int(message["term"])
        except (KeyError, TypeError, ValueError):
            # Of another version: it will find our words as strange.
            alike = False
        segment, session = "", secrets.token_hex(8)
        if alike:
            try:
                segment = self._begin(session, writer, term, connection)
            except SplashError as error:
                return {"error": str(error)}
            opened.append(session)
        welcome = Welcome(
            speaks=ours,
            abi=self._abi,
            num_bytes=self._memory.num_bytes,
            base=self._memory.address,
            segment=segment,
            session=session,
        )
        return welcome.to_message()

    def _begin(self, session: str, writer: str, term: int, connection: socket.socket) -> str:
        """Start a session's engine; returns its name for the writer."""
        engine = new_engine(self._options, memory=(self._memory.address, self._memory.num_bytes))
        with self._lock:
            problem = f"{self.address} is closing" if self._closing else self._fence_of(writer, term)
            if not problem:
                self._inlets[session] = _Inlet(engine, writer, term, connection)
                return engine.segment
        engine.end()
        raise Unavailable(problem)

    def _fence_of(self, writer: str, term: int) -> str:
        """Why a writer may not open a session; empty if it may. Called with the lock held."""
        last = self._fenced.get(writer)
        if last is None or term > last:
            return ""
        return (
            f"writer {writer} was fenced up to term {last} (its group was silent for long, or ended), and "
            f"this is of term {term}: the pages are not its any more; the request must claim pages anew"
        )

    def _end(self, session: str) -> None:
        with self._lock:
            inlet = self._inlets.get(session)
        if inlet is not None:
            inlet.engine.end()
            with self._lock:
                self._inlets.pop(session, None)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(options: TransportOptions) -> socket.socket:
    """The control channel's socket, at the first port of the range that is free.

    Raises:
        ConfigError: there is none, or the address is not this host's.
    """
    family = socket.AF_INET6 if ":" in options.bind else socket.AF_INET
    problem: OSError | None = None
    for port in options.port_range or (0,):
        try:
            return socket.create_server((options.bind, port), family=family, backlog=64)
        except OSError as error:
            problem = error
    place = f"{options.bind} with ports {options.ports or 'as free'}"
    raise ConfigError(
        f"the mooncake transport cannot listen on {place} ({problem}); choose another --host or "
        "--transport-ports"
    )
