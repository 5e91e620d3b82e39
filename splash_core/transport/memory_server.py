"""Serves the descriptor of a rank's memory, of any kind, with its ABI, to processes of the same user.

Invariant: whoever gets the descriptor has an equal ABI, which gives its bytes their meaning, and the owner's
pid from the kernel: what an owner says of itself may mean another process here.
"""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass

from splash_core.dist.fd_passing import Handed, fetch_fd, fresh_address, listen, same_user, send_fd
from splash_core.errors import Conflict, SplashError, Unavailable
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.memory import Memory, Offer

SCHEME = "shm:"

_RETRY_S = 0.01


class MemoryServer:
    """Hands out `memory` until closed, from a thread of its own."""

    def __init__(self, memory: Memory, abi: KvAbi, vitals: VitalThreads | None = None) -> None:
        """Serves from now on; `vitals` are of the rank, which ends when serving has failed."""
        socket_address = fresh_address()
        self.address = SCHEME + socket_address
        offer = memory.offer()
        self._fd = offer.fd
        words = {"kind": offer.kind, "num_bytes": offer.num_bytes}
        note = {"abi": asdict(abi), "memory": words}
        self._note = json.dumps(note).encode()
        self._closing = False
        self._socket = listen(socket_address)
        self._vitals = vitals or VitalThreads()
        self._thread = self._vitals.keep("memory server", self._serve)

    def close(self) -> None:
        """Serve nobody any more. Mappings that exist stay."""
        if self._closing:
            return
        self._vitals.release(self._thread)
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
                try:
                    if not same_user(connection):
                        continue
                    send_fd(connection, self._fd, self._note)
                except OSError:
                    # The client has gone; it is the one who learns of it.
                    continue


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMemory:
    """What is served at an address; whoever has it closes the offer's descriptor."""

    offer: Offer
    pid: int
    """Of the process whose memory it is, as this process counts them."""


def fetch_memory(address: str, abi: KvAbi, *, timeout_s: float) -> FoundMemory:
    """Fetch the memory served at an address.

    Args:
        address: a rank's.
        abi: ours.
        timeout_s: longest wait for an answer.

    Raises:
        Conflict: its ABI differs, with the diff; or its process cannot be seen from here, and so not
            when it has ended.
        Unavailable: the address is another transport's, nobody answers there, or in another version's words.
    """
    if not address.startswith(f"{SCHEME}@"):
        raise Unavailable(
            f"{address!r} is no {SCHEME}@… address: the peer is on another host or uses another transport"
        )
    handed = fetch_fd(address.removeprefix(SCHEME), timeout_s=timeout_s)
    try:
        return _checked(handed, address, abi)
    except SplashError:
        os.close(handed.fd)
        raise


def _checked(handed: Handed, address: str, abi: KvAbi) -> FoundMemory:
    try:
        fields = json.loads(handed.note)
        offer, theirs = Offer(fd=handed.fd, **fields["memory"]), KvAbi(**fields["abi"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"{address} describes its memory in unknown words; is it of this version?"
        ) from error
    if differences := abi_diff(abi, theirs):
        raise Conflict(f"the KV at {address} has another ABI: {'; '.join(differences)}")
    if handed.pid == 0:
        raise Conflict(
            f"the process that serves {address} is in another pid namespace, so its end could not be seen "
            "from here; let the groups' containers share one (Kubernetes: shareProcessNamespace: true in the "
            "pod, Docker: --pid), or use --transport mooncake"
        )
    return FoundMemory(offer=offer, pid=handed.pid)
