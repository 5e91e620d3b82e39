"""Which memory a transport reaches. Invariant: a group whose arenas no transport reaches does not start."""

from splash_core.errors import ConfigError
from splash_core.transport.kinds import HOST
from splash_core.transport.mooncake_library import load_library
from splash_core.transport.options import MOONCAKE, TransportOptions


def check_reach(options: TransportOptions) -> None:
    """Refuse a service whose ranks keep KV where the transport cannot write, or that lacks its library.

    Args:
        options: how pages cross between groups, and where the arenas lie.

    Raises:
        ConfigError: says what works instead.
    """
    if options.name != MOONCAKE:
        return
    load_library()
    if options.memory != HOST.name:
        raise ConfigError(
            f"--transport {MOONCAKE} reaches host memory only: ranks of this version do not register their "
            f"GPUs' memory with it. With --device {options.memory} use --transport shm, whose groups are all "
            "on one host; or --device cpu"
        )
