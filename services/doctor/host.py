"""Checks of this host: versions, libraries, ports, devices."""

import ctypes
import importlib.metadata
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from services.doctor.verdicts import CheckResult, failed, from_error, passed, warned
from services.listening import check_free
from splash_core.config import UpSettings
from splash_core.errors import ConfigError, SplashError
from splash_core.transport.mooncake_library import (
    CPU_FLAVOUR,
    CUDA_FLAVOURS,
    INSTALL,
    SYSTEM_PACKAGES,
    VERSION,
    installed_flavours,
    load_library,
)
from splash_core.transport.options import MOONCAKE

INFINIBAND = Path("/sys/class/infiniband")
_LIBRARIES = ("libibverbs.so.1", "libnuma.so.1", "libcurl.so.4")
_TORCH = ((2, 11), (2, 15))
"""From the first, below the second; as in pyproject.toml."""
_PORTS_PER_RANK = 3
"""A control channel, and two of an engine for each writer."""


def versions() -> Iterator[CheckResult]:
    """Is torch one that this version was tested with."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield failed("torch", "not installed; prefill and decode need it", "pip install 'torch>=2.11,<2.15'")
        return
    number = tuple(int(part) for part in found.partition("+")[0].split(".")[:2])
    if _TORCH[0] <= number < _TORCH[1]:
        yield passed("torch", found)
    else:
        yield failed("torch", f"{found} is outside 2.11 … 2.14", "pip install 'torch>=2.11,<2.15'")


def ports(settings: UpSettings) -> Iterator[CheckResult]:
    """Can this host listen where it is told to."""
    for flag, host, port in (
        ("--port", settings.host, settings.port),
        ("--admin-port", "127.0.0.1", settings.admin_port),
    ):
        try:
            check_free(host, port, flag=flag)
        except ConfigError as error:
            yield from_error(flag, error)
        else:
            yield passed(flag, f"{host}:{port} is free")
    if settings.transport_ports:
        yield _range(settings)


def _range(settings: UpSettings) -> CheckResult:
    low, _, high = settings.transport_ports.partition("-")
    free = sum(_is_free(settings.host, port) for port in range(int(low), int(high) + 1))
    wanted = _PORTS_PER_RANK * (settings.prefill_ranks + settings.decode_ranks)
    wanted += 2 * settings.prefill_ranks * settings.decode_ranks
    detail = f"{free} of {settings.transport_ports} are free, ranks need about {wanted}"
    if free < wanted:
        return failed("--transport-ports", detail, "widen the range, or leave it out")
    return passed("--transport-ports", detail)


def _is_free(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


def mooncake(settings: UpSettings) -> Iterator[CheckResult]:
    """Is the library there, in one flavour that fits, with the system's libraries that it needs."""
    if settings.transport != MOONCAKE:
        return
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            yield failed(name, "not found; --transport mooncake needs it", SYSTEM_PACKAGES)
        else:
            yield passed(name, "found")
    flavours = installed_flavours()
    if not flavours:
        yield failed("mooncake", "not installed; --transport mooncake needs it", INSTALL)
        return
    try:
        load_library()
    except SplashError as error:
        yield failed("mooncake", str(error), f"pip install {next(iter(flavours))}=={VERSION}")
        return
    name, version = next(iter(flavours.items()))
    yield passed("mooncake", f"{name} {version}")
    yield from _flavour(name, settings)


def _flavour(name: str, settings: UpSettings) -> Iterator[CheckResult]:
    """Does the flavour's CUDA fit torch's."""
    if settings.device == "cpu":
        if name != CPU_FLAVOUR:
            yield warned("mooncake flavour", f"{name} needs CUDA's libraries, unused on CPU", INSTALL)
        return
    import torch

    cuda = str(torch.version.cuda or "")
    fitting = next((flavour for flavour, major in CUDA_FLAVOURS.items() if cuda.split(".")[0] == major), "")
    if name == fitting:
        yield passed("mooncake flavour", f"{name} fits torch's CUDA {cuda}")
    else:
        remedy = f"pip uninstall -y {name} && pip install {fitting or 'a CUDA flavour'}=={VERSION}"
        yield failed("mooncake flavour", f"{name} does not fit torch's CUDA {cuda or '(none)'}", remedy)


def rails(settings: UpSettings, folder: Path = INFINIBAND) -> Iterator[CheckResult]:
    """Are the RDMA devices there, with a port that is up, and may memory be locked."""
    if settings.transport != MOONCAKE or settings.transport_protocol != "rdma":
        return
    present = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    named = [name.strip() for name in settings.transport_devices.split(",") if name.strip()] or present
    if not named:
        yield failed("rails", "no RDMA device on this host", "--transport-protocol tcp, or load its driver")
    for name in named:
        if name not in present:
            choice = ", ".join(present) or "none"
            yield failed(
                f"rail {name}", f"no such device; there are: {choice}", "correct --transport-devices"
            )
            continue
        states = [path.read_text().strip() for path in sorted((folder / name / "ports").glob("*/state"))]
        if any("ACTIVE" in state for state in states):
            yield passed(f"rail {name}", "a port is active")
        else:
            shown = ", ".join(states) or "no port"
            yield failed(f"rail {name}", f"no port is active ({shown})", "check the cable and `ibv_devinfo`")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY:
        yield warned("locked memory", f"limited to {locked} bytes; arenas must fit", "ulimit -l unlimited")
