"""The transport that a group's settings name. Invariant: nothing else chooses between them."""

from splash_core.transport.base import Transport
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.options import SHM, TransportOptions
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
