"""Copies between arenas in host memory: a peer's file is mapped, and the processor copies.

Invariant: a copy that has started is over, so nothing is ever under way.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence

from typing_extensions import override

from splash_core.errors import Unavailable
from splash_core.transport.kinds import HOST
from splash_core.transport.memory import Copies, Copy, Landed, Landing, Offer, Target, check_kind

_LANDED = Landed()


class HostTarget(Target):
    """A file of a peer's memory, mapped."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        # Keeps the mapping, and so the address, alive.
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(mapping)
        super().__init__(ctypes.addressof(self._anchor), len(mapping))

    @override
    def release(self) -> None:
        self._anchor = None
        self._mapping.close()


class HostCopies(Copies):
    """The `Copies` of arenas in host memory."""

    @override
    def enter_thread(self) -> None:
        """Any thread may copy."""

    @override
    def attach(self, offer: Offer) -> HostTarget:
        check_kind(offer, HOST.name)
        try:
            return HostTarget(mmap.mmap(offer.fd, os.fstat(offer.fd).st_size))
        except (OSError, ValueError) as error:
            # Out of address space or of mappings, or an empty file: one peer's trouble, not this rank's.
            raise Unavailable(f"the peer's memory cannot be mapped: {error}") from error

    @override
    def start(self, copies: Sequence[Copy]) -> Landing:
        for copy in copies:
            ctypes.memmove(copy.target, copy.source, copy.num_bytes)
        return _LANDED
