"""Quantities with their units as types, and the only conversions between them."""

from typing import NewType

Tokens = NewType("Tokens", int)
Bytes = NewType("Bytes", int)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

STAGING_BYTES = 256 * MIB
"""Default staging of a switch on each rank: the most bytes that one chunk of moves may hold."""


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds."""
    return seconds * 1e3


def format_bytes(num_bytes: float) -> str:
    """A readable size with a binary unit: `148.75 MiB`."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"
