"""How much KV room a rank gets when nobody says: from the memory there is, minus what else will take it.

Pure arithmetic; the caller measures. Ranks on CPU share their host's free memory; each rank on a GPU has that
GPU's, all but a margin.
"""

from dataclasses import dataclass

from splash_core.cost.footprint import Deployment, memory_account
from splash_core.errors import Infeasible
from splash_core.layout.layout import Layout, Matrix
from splash_core.layout.slots import matrix_elements, page_bytes
from splash_core.spec.model import ModelSpec
from splash_core.units import GIB, format_bytes

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
    """KV room of one rank on CPU, in bytes: at least one page.

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


def gpu_kv_bytes(
    spec: ModelSpec, deployment: Deployment, *, weights_region_bytes: int, staging_bytes: int
) -> int:
    """KV room of one rank on a GPU of its own, in bytes: what the account of docs/model.md §2 leaves.

    The rest of the model and the working memory count as in the layout that needs most of them, so that the
    group can switch to any layout that it can run.

    Args:
        spec: the model.
        deployment: ranks, precision, memory and the part of it to use, largest step, recorded steps.
        weights_region_bytes: where the projections lie, gaps included.
        staging_bytes: of a switch.

    Raises:
        Infeasible: not even one page is left; says how much of the GPU the rest takes.
    """
    account = memory_account(spec, deployment)
    other = max(account.other_bytes[layout] for layout in Layout if account.can_run(layout))
    fixed = other + weights_region_bytes + staging_bytes
    room = int(deployment.memory_bytes * deployment.fraction) - fixed
    if room < account.page_bytes:
        raise Infeasible(
            f"weights, working memory, recorded steps and staging of a rank take {format_bytes(fixed)} of "
            f"{format_bytes(deployment.memory_bytes * deployment.fraction)}, which leaves no page for KV",
            nearest="more --ranks, a smaller --chunk-tokens or --graph-bytes, or a larger --memory-fraction",
        )
    return room
