"""One transfer engine, and its end.

Ending one is how a write is called off for good: its connections close, its threads end, and no byte that was
on the way can land. The library's own way to end it joins a thread that sleeps up to a second in `accept`,
while Python's interpreter lock is held, so that thread is woken first. Invariant: when `end` returns, the
engine's sockets are closed and nothing writes through it.
"""

import contextlib
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from typing import Protocol

_LOOPBACK = "127.0.0.1"
_WAKE_S = 0.002


class LibraryEngine(Protocol):
    """What Splash uses of the library's engine; codes are the library's. It ends with its last reference."""

    def get_rpc_port(self) -> int:
        """The port of its handshake."""
        ...

    def register_memory(self, address: int, num_bytes: int) -> int:
        """Let peers write there; 0 is success."""
        ...

    def send_probe(self, segment: str) -> int:
        """0 if an engine answers at `host:port`."""
        ...

    def transfer_submit_write(self, segment: str, src: int, dst: int, num_bytes: int) -> int:
        """The number of a write under way; 0 if it was not begun."""
        ...

    def transfer_check_status(self, number: int) -> int:
        """0 under way, 1 written, below 0 failed; a number is forgotten with its first final answer."""
        ...


class EngineEnded(Exception):
    """The engine was used after its end."""


class MooncakeEngine:
    """Owns a library engine: it is the only reference to it."""

    def __init__(self, engine: LibraryEngine, host: str) -> None:
        """Take over an engine that has been started.

        Args:
            engine: the caller keeps no reference.
            host: under which peers know it.
        """
        self._engine: LibraryEngine | None = engine
        self._lock = threading.Lock()
        self._port = engine.get_rpc_port()
        self.segment = f"{host}:{self._port}"

    def probe(self, segment: str) -> int:
        """0 if the engine `segment` answers; a hung one may take a minute."""
        return self._alive().send_probe(segment)

    def submit(self, segment: str, src: int, dst: int, num_bytes: int) -> int:
        """Begin a write between addresses; its number, 0 if it was not begun."""
        return self._alive().transfer_submit_write(segment, src, dst, num_bytes)

    def status(self, number: int) -> int:
        """0 under way, 1 written, below 0 failed. After a final answer the number means nothing."""
        return self._alive().transfer_check_status(number)

    def end(self) -> None:
        """Close everything; again does nothing. Nobody may be inside another call."""
        with self._lock:
            if self._engine is None:
                return
            # Waking only hurries the end, so what keeps it from being done must not keep the engine alive.
            with contextlib.suppress(Exception):
                for connection in _own_sockets(self._port):
                    _wake_or_cut(connection)
                # The thread in `accept` takes this call, and then looks again every few milliseconds.
                self._engine.send_probe(f"{_LOOPBACK}:{self._port}")
            self._engine = None

    def _alive(self) -> LibraryEngine:
        engine = self._engine
        if engine is None:
            raise EngineEnded(self.segment)
        return engine


def _wake_or_cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            pause = struct.pack("ll", 0, int(_WAKE_S * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pause)
        else:
            # A handshake whose other end hangs would be waited for.
            connection.shutdown(socket.SHUT_RDWR)


def _own_sockets(port: int) -> Iterator[socket.socket]:
    """This process's TCP sockets at a local port, each for a moment."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            # Closed meanwhile.
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _local_port(connection) == port:
                yield connection


def _local_port(connection: socket.socket) -> int:
    try:
        return int(connection.getsockname()[1])
    except OSError:
        return 0
