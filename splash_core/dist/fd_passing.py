"""Memory without a name: made here, and handed to another process of the same user over a Unix socket.

Memory shared this way has no name in any file system, so nothing is left behind after a kill and no
container limit on /dev/shm applies. Invariant: both ends check that the other runs as the same user.
"""

import fcntl
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from splash_core.errors import GroupFailed, Unavailable

_UCRED = struct.Struct("3i")
_MAX_NOTE_BYTES = 65536


def anonymous_file(name: str, num_bytes: int) -> int:
    """A zeroed memory file of fixed size: no process that gets it can shrink it under another's feet."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def fresh_address() -> str:
    """An unguessable address in the abstract namespace (no file): `@splash-…`."""
    return f"@splash-{secrets.token_hex(8)}"


def listen(address: str) -> socket.socket:
    """A listening socket at an `@abstract` address."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(_native(address))
    server.listen(64)
    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a server has handed over; whoever has it closes the descriptor."""

    fd: int
    note: bytes
    pid: int
    """Of the process that listens, as this one counts them; 0: it cannot be seen from this pid namespace."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """`(pid, user)` of the process at the other end, as the kernel translates them for this one.

    At a client's end it is the process that has called `listen`.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


def same_user(connection: socket.socket) -> bool:
    """Does the process at the other end run as this user?"""
    _, uid = peer_of(connection)
    return uid == os.getuid()


def send_fd(connection: socket.socket, fd: int, note: bytes = b"-") -> None:
    """Send a copy of `fd` with a short note (1 … 65,536 bytes)."""
    socket.send_fds(connection, [note], [fd])


def fetch_fd(address: str, *, timeout_s: float) -> Handed:
    """Connect to `address` and receive what is served there.

    Raises:
        Unavailable: nobody of this user serves a descriptor there within `timeout_s`.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(_native(address))
            pid, uid = peer_of(connection)
            if uid != os.getuid():
                raise Unavailable(f"{address} is served by another user; run both as the same one")
            note, fds, _, _ = socket.recv_fds(connection, _MAX_NOTE_BYTES, 1)
    except OSError as error:
        raise Unavailable(f"no memory is served at {address}: {error}; has its process ended?") from error
    if not fds:
        raise Unavailable(f"{address} closed the connection without handing over memory")
    return Handed(fd=fds[0], note=note, pid=pid)


def hand_out_fd(server: socket.socket, fd: int, *, clients: int, timeout_s: float) -> None:
    """Give `fd` to that many clients of this user, then return.

    Raises:
        GroupFailed: fewer came within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    served = 0
    while served < clients:
        server.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, _ = server.accept()
        except TimeoutError as error:
            raise GroupFailed(
                f"only {served} of {clients} peers fetched the shared segment within {timeout_s:g} s"
            ) from error
        with connection:
            if same_user(connection):
                send_fd(connection, fd)
                served += 1


def _native(address: str) -> str:
    if not address.startswith("@"):
        raise ValueError(f"expected an @abstract socket address, got {address!r}")
    return "\0" + address[1:]
