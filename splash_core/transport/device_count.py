"""How many devices a host has. Invariant: asking takes none of them and loads no torch."""

import importlib
from collections.abc import Callable
from typing import cast

from splash_core.transport.kinds import DeviceKind


def num_devices(kind: DeviceKind) -> int:
    """How many there are, as ranks count them.

    Raises:
        ConfigError: the host has no driver for them, or it finds none.
    """
    module, _, name = kind.count.partition(":")
    return cast("Callable[[], int]", getattr(importlib.import_module(module), name))()
