"""What both ends of Mooncake's control channel say: one JSON object a line, over a TCP connection of ours.

Mooncake has neither a handshake of what memory means nor a way to call a write off, so this channel carries
both. Invariant: whatever arrives here, of whatever length or form, ends one connection at most.
"""

import errno
import json
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from splash_core.errors import Unavailable
from splash_core.transport.abi import KvAbi

SCHEME = "mooncake:"
_TERM = "term="
_MAX_LINE = 65536

Message = dict[str, Any]


class NotUnderstood(Exception):
    """A line that no version of the other end would send."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank's control channel listens, and which life of the rank it is."""

    host: str
    port: int
    incarnation: str
    """Nobody can guess it: whoever has it was told by the rank's leader."""
    term: int = 0
    """In which of the writer's terms it is written to; a fence ends one term (0: none is counted)."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        term = f"?{_TERM}{self.term}" if self.term else ""
        return f"{SCHEME}//{host}:{self.port}/{self.incarnation}{term}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The address that `str` wrote.

        Raises:
            Unavailable: it is another transport's.
        """
        try:
            parts = urlsplit(text)
            host, port, incarnation = parts.hostname, parts.port, parts.path.removeprefix("/")
            term = int(parts.query.removeprefix(_TERM) or 0)
        except ValueError:
            host, port, incarnation, term = None, None, "", 0
        if not text.startswith(f"{SCHEME}//") or not host or not port or not incarnation:
            raise Unavailable(
                f"{text!r} is no {SCHEME}//HOST:PORT/… address: the peer uses another transport; give both "
                "groups the same --transport"
            )
        return cls(host, port, incarnation, term)


def at_term(address: str, term: int) -> str:
    """The address of a rank, of whatever transport, as it is written to in a term of the writer."""
    if not term or not address.startswith(SCHEME):
        return address
    return str(replace(Address.parse(address), term=term))


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What a peer tells of its memory; `segment` is empty when it takes no writes from us."""

    speaks: str
    abi: KvAbi
    num_bytes: int
    base: int
    """Where the memory begins in the peer's process."""
    segment: str
    """Name of the engine that receives this session's writes, `host:port`."""
    session: str

    def to_message(self) -> Message:
        """For the wire."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Message) -> "Welcome":
        """From the wire.

        Raises:
            NotUnderstood: a field is missing or unknown.
        """
        try:
            fields: Message = message | {"abi": KvAbi(**message["abi"])}
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise NotUnderstood(f"a welcome of another version: {error}") from error


class Line:
    """A connection that carries messages in turn.

    Invariant: a line that broke is never taken to have been closed, however often it is looked at: the kernel
    tells a reset once and shows an end of the stream from then on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._broken = False
        # Two looks at once could share what is told once.
        self._looking = threading.Lock()

    @property
    def broken(self) -> bool:
        """True once an error other than a wait in vain was met; tells nothing of the other end."""
        return self._broken

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other end did not take it in time.
            OSError: the connection broke.
        """
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._note(error)
            raise

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message; None when the other end has closed.

        Raises:
            TimeoutError: it did not come in time.
            OSError: the connection broke.
            NotUnderstood: it is no message.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            self._connection.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            try:
                data = self._connection.recv(_MAX_LINE)
            except OSError as error:
                self._note(error)
                raise
            if not data and self._broken:
                raise ConnectionResetError("the connection broke before")
            if not data:
                return None
            self._rest += data
            if len(self._rest) > _MAX_LINE:
                raise NotUnderstood(f"a line of more than {_MAX_LINE} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NotUnderstood(f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise NotUnderstood(f"not an object: {line[:40]!r}")
        return message

    def closed_by_peer(self) -> bool:
        """True if the other end has closed, which its kernel also does for a process that ends."""
        with self._looking:
            try:
                self._connection.settimeout(0)
                return self._connection.recv(1, socket.MSG_PEEK) == b"" and not self._broken
            except OSError as error:
                self._note(error)
                return False

    def close(self) -> None:
        """Let go."""
        self._connection.close()

    def _note(self, error: OSError) -> None:
        # A timeout of Python's has no number; the kernel's ETIMEDOUT, of a host that vanished, has one.
        if error.errno not in (None, errno.EAGAIN):
            self._broken = True


def dial(address: Address, timeout_s: float) -> Line:
    """Connect to a control channel.

    Raises:
        OSError: nobody answers; ConnectionRefusedError if nobody listens there.
    """
    connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
    keep_alive(connection)
    return Line(connection)


def keep_alive(connection: socket.socket) -> None:
    """Small messages at once, and an end that vanishes without a word is noticed within two minutes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 60),
        (socket.TCP_KEEPINTVL, 10),
        (socket.TCP_KEEPCNT, 6),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
