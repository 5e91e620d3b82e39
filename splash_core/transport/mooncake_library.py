"""Mooncake's Transfer Engine: found, checked and started here; nothing else imports it.

It is imported when the first engine is needed, so that groups on shared memory run without its libraries.
Invariant: an engine that exists was made with checked arguments: a metadata scheme that the library does not
know would abort the process.
"""

import importlib
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

from splash_core.environment import limit_mooncake, prepare_mooncake
from splash_core.errors import ConfigError, Unavailable
from splash_core.transport.mooncake_engine import MooncakeEngine
from splash_core.transport.options import TransportOptions

VERSION = "0.3.13.post1"
CPU_FLAVOUR = "mooncake-transfer-engine-non-cuda"
CUDA_FLAVOURS = {"mooncake-transfer-engine": "12", "mooncake-transfer-engine-cuda13": "13"}
"""Distributions with support for GPU memory, and the CUDA that they are built for."""
FLAVOURS = (CPU_FLAVOUR, *CUDA_FLAVOURS)
INSTALL = f"pip install {CPU_FLAVOUR}=={VERSION}"
SYSTEM_PACKAGES = "apt-get update && apt-get install -y libibverbs1 libnuma1 libcurl4"
METADATA = "P2PHANDSHAKE"
"""Peers ask each other; the other schemes need a server, or abort the process."""
PROTOCOLS = ("tcp", "rdma")


def installed_flavours() -> dict[str, str]:
    """Versions of the installed distributions that provide the module, by name."""
    found: dict[str, str] = {}
    for name in FLAVOURS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def load_library() -> Any:
    """The module `mooncake.engine`.

    Raises:
        ConfigError: it is not installed, installed twice, of another version, or lacks a system library; with
            the command that mends it.
    """
    flavours = installed_flavours()
    if not flavours:
        raise ConfigError(f"--transport mooncake: the package is not installed; {INSTALL}")
    if len(flavours) > 1:
        names = " and ".join(sorted(flavours))
        raise ConfigError(
            f"{names} are installed together and overwrite each other's files; "
            f"pip uninstall -y {' '.join(sorted(flavours))}, then install one of them =={VERSION}"
        )
    name, version = next(iter(flavours.items()))
    if version != VERSION:
        raise ConfigError(f"{name} {version} is installed, not {VERSION}; pip install {name}=={VERSION}")
    prepare_mooncake()
    try:
        return importlib.import_module("mooncake.engine")
    except ImportError as error:
        raise ConfigError(f"{name} cannot be loaded ({error}); {SYSTEM_PACKAGES}") from error


def new_engine(options: TransportOptions, *, memory: tuple[int, int] | None = None) -> MooncakeEngine:
    """Start an engine with threads and ports of its own.

    Args:
        options: of the transport.
        memory: address and size of the memory that it reads and serves; None: it only asks.

    Raises:
        ConfigError: the library is missing, a protocol is not one of `PROTOCOLS`, or RDMA has no device.
        Unavailable: it does not start, or refuses the memory; says with what.
    """
    if options.protocol not in PROTOCOLS:
        raise ConfigError(f"mooncake protocol {options.protocol!r} is not one of {', '.join(PROTOCOLS)}")
    ports = options.port_range
    library = load_library()
    limit_mooncake(stall_timeout_s=options.stall_timeout_s, ports=(ports[0], ports[-1]) if ports else None)
    engine = library.TransferEngine()
    # It throws for want of descriptors or ports, for example.
    code = _told(engine.initialize, options.host, METADATA, options.protocol, options.devices)
    if code != 0:
        raise Unavailable(
            f"the transfer engine does not start at {options.host} with protocol {options.protocol}, devices "
            f"{options.devices or 'as found'} and ports {options.ports or 'as free'} ({code}); "
            "`splash doctor` checks each of them"
        )
    if options.protocol == "rdma" and not _rails(_told(engine.get_local_topology)):
        raise ConfigError(
            f"--transport-protocol rdma: the library finds none of the devices {options.devices or '(any)'} "
            "here and would carry pages over TCP without a word; correct --transport-devices, or use "
            "--transport-protocol tcp"
        )
    if memory is not None and (code := _told(engine.register_memory, *memory)) != 0:
        raise Unavailable(
            f"the transfer engine refuses to register {memory[1]} bytes (code {code}); over rdma the limit "
            "of locked memory (ulimit -l) must allow them"
        )
    return MooncakeEngine(engine, options.host)


def _rails(topology: str) -> set[str]:
    """The RDMA devices in the library's map of this host: for each place of memory two lists of names.

    Raises:
        Unavailable: it is no such map.
    """
    try:
        places = json.loads(topology or "{}").values()
        return {name for lists in places for names in lists for name in names}
    except (ValueError, TypeError, AttributeError) as error:
        raise Unavailable(
            f"the transfer engine does not say which RDMA devices it found, but {topology!r}; "
            "`splash doctor` looks for them, or use --transport-protocol tcp"
        ) from error


def _told(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the library answers, or the words of what it throws, which is no code and no map."""
    try:
        return call(*arguments)
    except Exception as error:
        # Words rather than the exception, whose traceback would keep the engine alive.
        return f"{type(error).__name__}: {error}"
