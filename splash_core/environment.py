"""The environment of this process and of its children: nothing else reads or changes it.

Invariant: what a library reads from the environment is set here, before the library is loaded.
"""

import os
from collections.abc import Mapping
from pathlib import Path

_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""NVLink multicast stays off unless the operator says otherwise: a fault there may take a host's GPUs."""
_MOONCAKE = {
    # Bytes that its threads move at once; the library's own is 64 KiB.
    "MC_TCP_SLICE_SIZE": str(1 << 20),
    # It says on stderr what it does, at length; what goes wrong comes back as codes.
    "MC_LOG_LEVEL": "ERROR",
}


def current() -> Mapping[str, str]:
    """This process's environment."""
    return os.environ


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/splash`: one folder a run."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "splash"


def cache_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/splash`: fetched models."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "splash"


def child_environment(*, num_threads: int | None = None) -> dict[str, str]:
    """This process's environment for a child, with the thread count that numeric libraries read at import."""
    environ = _NO_MULTICAST | dict(os.environ)
    if num_threads is not None:
        environ |= {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
    return environ


def keep_multicast_off() -> None:
    """The same for this process, and for children that `child_environment` is not made for."""
    _set_defaults(_NO_MULTICAST)


def prepare_mooncake() -> None:
    """What Mooncake reads when it is loaded, unless the operator has set it already."""
    _set_defaults(_MOONCAKE)


def limit_mooncake(*, stall_timeout_s: int, ports: tuple[int, int] | None) -> None:
    """What Mooncake reads when an engine starts, unless the operator has set it already.

    Args:
        stall_timeout_s: a write whose bytes do not move for so long fails; whole seconds.
        ports: the first and last that it may listen on; None: its own range, 15000 to 17000.
    """
    variables = {
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(stall_timeout_s),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(stall_timeout_s),
    }
    if ports is not None:
        for kind in ("RPC", "PRC"):
            variables |= {f"MC_MIN_{kind}_PORT": str(ports[0]), f"MC_MAX_{kind}_PORT": str(ports[1])}
    _set_defaults(variables)


def _set_defaults(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
