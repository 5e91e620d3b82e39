"""Serves the descriptor of a rank's memory, of any kind, with its ABI, to processes of the same user.

Invariant: whoever gets the descriptor also gets the ABI that gives its bytes their meaning.
"""

import json
import os
import socket
import threading
import time
from dataclasses import asdict

from splash_core.dist.fd_passing import fetch_fd, fresh_address, listen, same_user, send_fd
from splash_core.errors import Unavailable
from splash_core.transport.abi import KvAbi
from splash_core.transport.memory import Memory, Offer

SCHEME = "shm:"

_RETRY_S = 0.01


class MemoryServer:
    """Hands out `memory` until closed, from a thread of its own."""

    def __init__(self, memory: Memory, abi: KvAbi) -> None:
        socket_address = fresh_address()
        self.address = SCHEME + socket_address
        offer = memory.offer()
        self._fd = offer.fd
        words = {"kind": offer.kind, "num_bytes": offer.num_bytes}
        note = {"pid": os.getpid(), "abi": asdict(abi), "memory": words}
        self._note = json.dumps(note).encode()
        self._closing = False
        self._socket = listen(socket_address)
        self._thread = threading.Thread(target=self._serve, name="memory-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve nobody any more. Mappings that exist stay."""
        if self._closing:
            return
        self._closing = True
        # Wakes the thread out of accept.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        os.close(self._fd)

    def _serve(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Closed, or out of descriptors for a moment.
                time.sleep(_RETRY_S)
                continue
            with connection:
                if not same_user(connection):
                    continue
                try:
                    send_fd(connection, self._fd, self._note)
                except OSError:
                    # The client has gone; it is the one who learns of it.
                    continue


def fetch_memory(address: str, *, timeout_s: float) -> tuple[Offer, int, KvAbi]:
    """Fetch `(what is offered, pid of its owner, ABI)` of the memory served at `address`.

    The caller closes the offer's descriptor.

    Raises:
        Unavailable: the address is another transport's, nobody answers there, or in another version's words.
    """
    if not address.startswith(f"{SCHEME}@"):
        raise Unavailable(
            f"{address!r} is no {SCHEME}@… address: the peer is on another host or uses another transport"
        )
    fd, note = fetch_fd(address.removeprefix(SCHEME), timeout_s=timeout_s)
    try:
        fields = json.loads(note)
        return Offer(fd=fd, **fields["memory"]), fields["pid"], KvAbi(**fields["abi"])
    except (ValueError, KeyError, TypeError) as error:
        os.close(fd)
        raise Unavailable(
            f"{address} describes its memory in unknown words; is it of this version?"
        ) from error
