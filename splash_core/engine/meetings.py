"""First words to peers, spoken off the push lane: a peer that does not answer holds up its own pushes only.

Invariant: `peer` never waits, and at most one thread at a time asks an address.
"""

from concurrent.futures import Future, ThreadPoolExecutor

from splash_core.transport.abi import KvAbi
from splash_core.transport.base import Peer, Transport

_MOST_AT_ONCE = 64
"""Far more ranks than one rank writes to: those that answer never wait for those that do not."""


class Meetings:
    """All peers of one rank; used by the push lane's thread."""

    def __init__(self, transport: Transport, abi: KvAbi) -> None:
        self._transport = transport
        self._abi = abi
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="meeting")
        self._under_way: dict[str, Future[Peer]] = {}

    def peer(self, address: str) -> Peer | None:
        """The peer at an address, or None while it is being asked: then ask again later.

        Raises:
            Conflict: its ABI differs.
            Unavailable: nobody answers there. The next call asks anew.
        """
        asked = self._under_way.get(address)
        if asked is None:
            known = self._transport.connected(address)
            if known is not None:
                return known
            asked = self._pool.submit(self._transport.connect, address, self._abi)
            self._under_way[address] = asked
        if not asked.done():
            return None
        del self._under_way[address]
        return asked.result()

    def close(self) -> None:
        """Wait until nobody is being asked any more: at most as long as a transport waits for an answer."""
        self._pool.shutdown(cancel_futures=True)
