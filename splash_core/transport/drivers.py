"""Opens the driver of a device. Invariant: a driver's module is loaded by nobody who does not use it."""

import importlib
from collections.abc import Callable
from typing import cast

from splash_core.transport.device_memory import DeviceDriver
from splash_core.transport.kinds import DeviceKind


def open_driver(kind: DeviceKind, index: int) -> DeviceDriver:
    """The driver of one device of a host.

    Args:
        kind: of the device's memory.
        index: of the device, as torch counts them.

    Raises:
        ConfigError: the host has no such driver or device, or it cannot do what arenas need.
    """
    module, _, name = kind.driver.partition(":")
    make = cast("Callable[[int], DeviceDriver]", getattr(importlib.import_module(module), name))
    return make(index)
