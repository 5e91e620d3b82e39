"""How much KV room a rank gets when nobody says: from free memory, minus what the weights will take.

Pure arithmetic; the caller measures. Invariant: the answer holds at least one whole page.
"""

from dataclasses import dataclass

from splash_core.layout.layout import Matrix
from splash_core.layout.slots import matrix_elements, page_bytes
from splash_core.spec.model import ModelSpec
from splash_core.units import GIB

SHARE = 0.5
"""Of the memory that is left beside all weights of the host's ranks; the rest is for activations."""
MOST_BYTES = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What the ranks of one host share."""

    free_bytes: int
    ranks: int
    checkpoint_bytes: int
    stored_elem_bytes: int
    """Bytes per weight in the checkpoint."""


def projection_bytes(spec: ModelSpec, *, elem_bytes: int) -> int:
    """Bytes of all head-indexed projections, all heads, all layers."""
    return spec.num_mla_layers * elem_bytes * sum(matrix_elements(spec, matrix) for matrix in Matrix)


def default_kv_bytes(spec: ModelSpec, host: HostMemory, *, page_size: int, elem_bytes: int) -> int:
    """KV room of one rank, in bytes.

    Args:
        spec: the model.
        host: free memory and who shares it.
        page_size: tokens a page.
        elem_bytes: bytes per number of weights and KV as served.
    """
    page = page_bytes(spec, page_size=page_size, elem_bytes=elem_bytes)
    sharded = host.checkpoint_bytes // max(host.stored_elem_bytes, 1) * elem_bytes
    # Two groups hold the rest of the model once each, every rank a whole set of projections.
    weights = 2 * sharded + host.ranks * projection_bytes(spec, elem_bytes=elem_bytes)
    room = max(0, int((host.free_bytes - weights) * SHARE)) // max(host.ranks, 1)
    # More than 16 longest requests of one rank would only be touched by a benchmark.
    useful = 16 * -(-spec.max_positions // page_size) * page
    return max(page, min(room, useful, MOST_BYTES))
