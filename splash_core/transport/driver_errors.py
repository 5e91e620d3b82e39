"""What a device's driver refuses. Invariant: a driver raises nothing else for what it was asked to do."""


class DriverError(Exception):
    """The device's driver has refused a call; says which and why."""


class OutOfDeviceMemory(DriverError):
    """The device has not so much memory left."""
