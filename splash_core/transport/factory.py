"""The transport that a group's settings name. Invariant: nothing else chooses between them."""

import os
from dataclasses import replace

from splash_core.transport.abi import KvAbi
from splash_core.transport.base import Transport
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.memory_server import SCHEME as SHM_SCHEME
from splash_core.transport.memory_server import fetch_memory
from splash_core.transport.options import MOONCAKE, SHM, TransportOptions
from splash_core.transport.shm import ShmTransport


def open_transport(options: TransportOptions, link: BandwidthArbiter | None = None) -> Transport:
    """A transport of its own for one rank.

    Args:
        options: of the rank's group.
        link: whom writes ask for their turn; None: one without a limit.

    Raises:
        ConfigError: its library is missing; says how to install it.
    """
    if options.name == SHM:
        return ShmTransport(link)
    # Imported here: shared memory must work where Mooncake's libraries are not installed.
    from splash_core.transport.mooncake import MooncakeTransport
    from splash_core.transport.mooncake_library import load_library

    load_library()
    return MooncakeTransport(options, link)


def reach_peer(options: TransportOptions, address: str, abi: KvAbi, *, devices: str = "") -> None:
    """Return if the memory at `address` could be written to from here; writes nothing.

    Args:
        options: ours; the peer's address says which transport it is.
        address: a rank's.
        abi: its group's.
        devices: the rails to go by; default: those of the options.

    Raises:
        Conflict: it is another's ABI.
        Unavailable: nobody answers there.
    """
    if address.startswith(SHM_SCHEME):
        fd, _, _ = fetch_memory(address, timeout_s=options.answer_timeout_s)
        os.close(fd)
        return
    from splash_core.transport.mooncake_link import PeerLink
    from splash_core.transport.mooncake_probe import Prober
    from splash_core.transport.mooncake_words import Address

    words = replace(options, name=MOONCAKE, devices=devices or options.devices)
    link = PeerLink.open(Address.parse(address), abi, words)
    prober = Prober(words)
    try:
        prober.check(link.welcome.segment)
    finally:
        link.close()
        prober.close()
