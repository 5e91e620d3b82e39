"""Which memory a transport reaches. Invariant: a group whose arenas no transport reaches does not start."""

from splash_core.errors import ConfigError


def check_reach(device: str, transport: str) -> None:
    """Refuse a service whose ranks keep KV where the transport cannot write.

    Args:
        device: where the ranks keep their arenas.
        transport: how pages cross between groups.

    Raises:
        ConfigError: says what would be needed, and what works without.
    """
    if device != "cpu":
        raise ConfigError(
            f"--device {device}: the {transport} transport writes host memory only, so prefill cannot hand "
            "KV to decode; serving needs a transport that reaches GPU memory, which this version has not. "
            "`splash bench` runs the engine on GPUs without one; to serve, use --device cpu"
        )
