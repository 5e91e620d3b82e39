"""The transport that a group's settings name. Invariant: nothing else chooses between them."""

import os
from dataclasses import replace

from splash_core.errors import ConfigError
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.abi import KvAbi
from splash_core.transport.base import Transport
from splash_core.transport.link import RankLinks
from splash_core.transport.memory import Copies, check_kind
from splash_core.transport.memory_server import SCHEME as SHM_SCHEME
from splash_core.transport.memory_server import fetch_memory
from splash_core.transport.mooncake_words import SCHEME as MOONCAKE_SCHEME
from splash_core.transport.options import MOONCAKE, SHM, TransportOptions
from splash_core.transport.shm import ShmTransport


def open_transport(
    options: TransportOptions,
    links: RankLinks | None = None,
    *,
    copies: Copies | None = None,
    vitals: VitalThreads | None = None,
) -> Transport:
    """A transport of its own for one rank.

    Args:
        options: of the rank's group.
        links: whom writes ask for their turn; None: some without a limit.
        copies: of the rank's memory; None: of host memory.
        vitals: of the rank; None: nobody looks.

    Raises:
        ConfigError: there is no such transport, or its library is missing; says how to install it.
    """
    if options.name == SHM:
        return ShmTransport(None if links is None else links.phase, copies=copies, vitals=vitals)
    if options.name != MOONCAKE:
        raise ConfigError(f"--transport {options.name!r} is not one of {SHM}, {MOONCAKE}")
    # Imported here: shared memory must work where Mooncake's libraries are not installed.
    from splash_core.transport.mooncake import MooncakeTransport
    from splash_core.transport.mooncake_library import load_library

    load_library()
    return MooncakeTransport(options, links, vitals=vitals)


def reach_peer(options: TransportOptions, address: str, abi: KvAbi, *, devices: str = "") -> None:
    """Return if the memory at `address` could be written to from here; writes nothing.

    Args:
        options: ours; the peer's address says which transport it is.
        address: a rank's.
        abi: its group's.
        devices: the rails to go by; default: those of the options.

    Raises:
        ConfigError: no transport has such addresses.
        Conflict: its ABI differs, its memory is of another kind than ours, or we cannot see its process.
        Unavailable: nobody answers there.
    """
    if address.startswith(SHM_SCHEME):
        found = fetch_memory(address, abi, timeout_s=options.answer_timeout_s)
        try:
            check_kind(found.offer, options.memory)
        finally:
            os.close(found.offer.fd)
        return
    if not address.startswith(MOONCAKE_SCHEME):
        raise ConfigError(
            f"{address!r} is no transport's address, which begins with {SHM_SCHEME} or {MOONCAKE_SCHEME}; "
            "do both hosts run the same version?"
        )
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
