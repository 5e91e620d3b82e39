"""Which memory a transport reaches. Invariant: a group whose arenas no transport reaches does not start."""

from splash_core.errors import ConfigError
from splash_core.transport.mooncake_library import CUDA_FLAVOURS, VERSION, load_library
from splash_core.transport.options import MOONCAKE, TransportOptions


def check_reach(device: str, options: TransportOptions) -> None:
    """Refuse a service whose ranks keep KV where the transport cannot write, or that lacks its library.

    Args:
        device: where the ranks keep their arenas.
        options: how pages cross between groups.

    Raises:
        ConfigError: says what would be needed, and what works without.
    """
    if options.name == MOONCAKE:
        load_library()
    if device == "cpu":
        return
    flavours = " or ".join(f"{name}=={VERSION} (CUDA {cuda})" for name, cuda in CUDA_FLAVOURS.items())
    raise ConfigError(
        f"--device {device}: serving needs a transport that reaches GPU memory, for prefill to hand KV to "
        f"decode, and the {options.name} transport writes host memory only. --transport mooncake over rdma "
        f"reaches it with a flavour of the library for CUDA ({flavours}), but ranks of this version do not "
        "register their GPU memory with it yet. `splash bench` runs the engine on GPUs without a transport; "
        "to serve, use --device cpu"
    )
