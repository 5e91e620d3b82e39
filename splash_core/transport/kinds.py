"""What memory arenas may lie in, by the device that ranks compute on.

Another device needs an entry in `KINDS` and the module of its driver. Nothing here loads a driver, so leaders
read it too. Invariant: nowhere else does a device's name decide what its memory is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from splash_core.errors import ConfigError
from splash_core.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKind:
    """One kind of memory; ranks write into memory of their own kind only."""

    name: str
    """As peers say it, and as the KV ABI shows it."""
    device: str
    """`--device` of the ranks whose arenas lie there."""
    chunk_bytes: int
    """Largest chunks unless somebody says otherwise: a moment of the link, longer than to ask for a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind(MemoryKind):
    """Memory of devices that a driver speaks for."""

    driver: str
    """Its class, as `module:name`; made from a device's number."""
    count: str
    """What counts them without taking one, as `module:name`; it loads no torch."""
    needs: str
    """What a host must have for it."""
    look: str
    """What shows an operator the devices."""
    look_at_links: str
    """What shows an operator which of them reach each other."""


HOST = MemoryKind(name="host", device="cpu", chunk_bytes=1 * MIB)
CUDA = DeviceKind(
    name="cuda",
    device="cuda",
    chunk_bytes=16 * MIB,
    driver="splash_core.transport.cuda_driver:CudaDriver",
    count="splash_core.transport.cuda_library:count_gpus",
    needs="NVIDIA's driver",
    look="`nvidia-smi`",
    look_at_links="`nvidia-smi topo -p2p r`",
)
KINDS: Mapping[str, MemoryKind] = MappingProxyType({kind.device: kind for kind in (HOST, CUDA)})
"""By device."""


def memory_kind(device: str) -> MemoryKind:
    """Where the arenas of ranks lie that compute on a device.

    Raises:
        ConfigError: there is no such device.
    """
    if device not in KINDS:
        raise ConfigError(f"--device {device!r} is not one of {', '.join(KINDS)}")
    return KINDS[device]


def device_kind(device: str) -> DeviceKind | None:
    """The same for devices that have a driver; None where arenas lie in host memory."""
    kind = memory_kind(device)
    return kind if isinstance(kind, DeviceKind) else None
