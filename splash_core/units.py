"""Quantities with their units as types, and the only conversions between them."""

from typing import NewType

Tokens = NewType("Tokens", int)
Bytes = NewType("Bytes", int)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

GROUP_RANKS = 1024
"""Most ranks of one group: they meet in every layer, and far fewer heads are there to divide."""

STAGING_BYTES = 256 * MIB
"""Default memory on each rank that a switch's moves are staged in."""

TRANSFER_CTAS = 20
"""Default thread blocks that transfers take from a GPU. Between two H200s NCCL moves messages of 64 MiB at
263 GB/s with 16 to a peer, as without a limit, but at 156 with 8: see `dist.nccl.blocks_to_allow`."""

GRAPH_BYTES = 2 * GIB
"""Default memory of a GPU that is set aside for recorded decode steps. On H200 those of a model of 61 layers
take some 30 MiB for each layout and number of rows."""

DENSE_EXPERT_ROWS = 128
"""Most rows of a step for which a GPU computes every local expert on every row."""

LAYERS_AHEAD = 2
"""Default number of layers whose moves are enqueued before the layer that computes (GPU)."""


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds."""
    return seconds * 1e3


def format_bytes(num_bytes: float) -> str:
    """A readable size with a binary unit: `148.75 MiB`."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"
