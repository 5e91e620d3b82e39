"""The wire between a group's leader and its ranks: protobuf frames over ZeroMQ, never pickle.

The leader binds one ROUTER socket; each rank connects a DEALER whose identity is its number. Messages to
one rank arrive in the order they were sent, which is what keeps collectives in the same order on all ranks.
Pushes alone travel on a second connection of each rank, its push lane, so that they need not wait for steps.
"""

from pathlib import Path

import zmq
import zmq.asyncio

from splash_core.errors import GroupFailed
from splash_core.ids import RankId
from splash_core.pb import rank_pb2

_IPC = "ipc://"
PUSH_LANE = "/push"
"""What the identity of a rank's second connection ends with."""
VITALS_LANE = "/vitals"
"""And that of a third one, which is opened to tell that background work of the rank has died."""
_TO_PUSH_LANE = frozenset(("push", "cancel_push", "link", "fence"))


class LeaderLink:
    """The leader's end (asyncio)."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # Without it a frame to a rank that is not connected would vanish and the step would hang.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._file = _inode(self.address)
        """Ours: a successor puts its own in its place while this one still drains."""

    async def send(self, rank: RankId, message: rank_pb2.ToRank) -> None:
        """Send one frame to a rank, what concerns pushes to its push lane.

        Raises:
            GroupFailed: it is not connected.
        """
        lane = PUSH_LANE if message.WhichOneof("message") in _TO_PUSH_LANE else ""
        try:
            await self._socket.send_multipart([f"{rank}{lane}".encode(), message.SerializeToString()])
        except zmq.ZMQError as error:
            raise GroupFailed(f"it is not connected: {error}") from error

    async def receive(self) -> tuple[RankId, rank_pb2.FromRank]:
        """The next frame from any rank."""
        identity, frame = await self._socket.recv_multipart()
        return RankId(int(identity.decode().partition("/")[0])), rank_pb2.FromRank.FromString(frame)

    def close(self) -> None:
        """Drop the connection and everything queued."""
        # The library leaves it behind. While it is open, no other file can have the number of its inode.
        if self._file is not None and _inode(self.address) == self._file:
            Path(self.address.removeprefix(_IPC)).unlink(missing_ok=True)
        self._socket.close()
        self._context.term()


class RankLink:
    """A rank's end (blocking)."""

    def __init__(self, address: str, rank: RankId, *, lane: str = "") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"{rank}{lane}".encode())
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        try:
            self._socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def receive(self, timeout_s: float) -> rank_pb2.ToRank | None:
        """The next frame from the leader, or None when none came within `timeout_s`."""
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        return rank_pb2.ToRank.FromString(self._socket.recv())

    def send(self, message: rank_pb2.FromRank) -> None:
        """Send one frame to the leader."""
        self._socket.send(message.SerializeToString())

    def close(self) -> None:
        """Deliver what is queued (for at most a second) and close."""
        self._socket.close()
        self._context.term()


def _inode(address: str) -> tuple[int, int] | None:
    """Device and inode of an address's socket; None where it has no file, or none any more."""
    if not address.startswith(_IPC):
        return None
    try:
        found = Path(address.removeprefix(_IPC)).lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def ipc_address(folder: Path) -> str:
    """Where a leader listens for ranks of its own host."""
    return f"{_IPC}{folder / 'leader.sock'}"
