"""A rank's side of being written to: every writer gets a receiving engine of its own, and can have it ended.

An engine costs a millisecond and two threads. In return a writer's failure is contained: when an engine is
gone, its connections are gone, and no byte that was on the way can land any more. Nothing else that Mooncake
offers proves that. Invariant: `fenced` is answered, and a writer's connection is closed, only after its
engine is gone.
"""

import contextlib
import logging
import secrets
import socket
import threading
import time

from splash_core.errors import ConfigError, SplashError, Unavailable
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.mooncake_engine import Engine
from splash_core.transport.mooncake_library import new_engine
from splash_core.transport.mooncake_words import Address, Line, Message, NotUnderstood, Welcome
from splash_core.transport.options import TransportOptions

_log = logging.getLogger("splash.transport")
_RETRY_S = 0.01
_HELLO_S = 10.0
"""The most that a new connection may take for its first words."""


class MooncakeServer:
    """Hands out receiving engines for `memory` until closed."""

    def __init__(self, memory: ArenaMemory, abi: KvAbi, options: TransportOptions) -> None:
        self._memory = memory
        self._abi = abi
        self._options = options
        self._inlets: dict[str, Engine] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._socket = _listen(options)
        port = int(self._socket.getsockname()[1])
        self.address = Address(options.host, port, secrets.token_hex(16))
        self._thread = threading.Thread(target=self._accept, name="mooncake-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all receiving engines, then listen no more: a refused connection proves that they are gone."""
        with self._lock:
            self._closing = True
            inlets, connections = list(self._inlets.values()), list(self._connections)
        for inlet in inlets:
            inlet.end()
        for connection in [self._socket, *connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Closed, or out of descriptors for a moment.
                time.sleep(_RETRY_S)
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="mooncake-writer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """One writer's connection; its end is the end of what it opened."""
        opened: list[str] = []
        with self._lock:
            self._connections.add(connection)
        with connection:
            try:
                line = Line(connection)
                timeout_s: float | None = _HELLO_S
                while (message := line.receive(timeout_s)) is not None:
                    line.send(self._answer(message, opened))
                    timeout_s = None
            except (OSError, NotUnderstood) as error:
                _log.info("a writer's connection ended: %s", error)
            finally:
                for session in opened:
                    self._end(session)
                with self._lock:
                    self._connections.discard(connection)

    def _answer(self, message: Message, opened: list[str]) -> Message:
        if message.get("incarnation") != self.address.incarnation:
            # Who asks for another life of this address learns that it is over.
            return {"error": "another incarnation", "gone": True}
        if message.get("ask") == "fence":
            self._end(str(message.get("session")))
            return {"fenced": True}
        if message.get("ask") == "open":
            return self._open(message, opened)
        return {"error": f"nothing is known of {message.get('ask')!r}"}

    def _open(self, message: Message, opened: list[str]) -> Message:
        ours = self._options.speaks
        try:
            alike = message["speaks"] == ours and not abi_diff(self._abi, KvAbi(**message["abi"]))
        except (KeyError, TypeError):
            # Of another version: it will find our words as strange.
            alike = False
        segment, session = "", secrets.token_hex(8)
        if alike:
            try:
                segment = self._begin(session)
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

    def _begin(self, session: str) -> str:
        """Start a session's engine; returns its name for the writer."""
        inlet = new_engine(self._options, memory=(self._memory.address, self._memory.num_bytes))
        with self._lock:
            if not self._closing:
                self._inlets[session] = inlet
                return inlet.segment
        inlet.end()
        raise Unavailable(f"{self.address} is closing")

    def _end(self, session: str) -> None:
        with self._lock:
            inlet = self._inlets.get(session)
        if inlet is not None:
            inlet.end()
            with self._lock:
                self._inlets.pop(session, None)


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
