"""Whether a benchmark's ranks fit into this host's memory, asked before anything is taken of it.

Only of CPUs: a GPU's memory is divided by its account (`sizing`). Invariant: whatever is refused here would
not have fitted, as only what is sure to be taken is counted.
"""

from services.bench.settings import ALONE, BenchSettings
from services.bench.shapes import measured_spec
from splash_core.cost.footprint import ModelBytes
from splash_core.cost.precision import named_precision
from splash_core.errors import Infeasible
from splash_core.leader.host import memory_limit
from splash_core.leader.sizing import projection_bytes
from splash_core.spec.model import ModelSpec
from splash_core.units import format_bytes


def check_weights(settings: BenchSettings) -> None:
    """Return if all ranks' weights, and arenas where they are set, fit; `settings` are resolved.

    Raises:
        Infeasible: they do not.
    """
    if settings.device != "cpu":
        return
    spec = measured_spec(settings.model, layers=settings.layers, experts=settings.experts)
    each = weight_bytes(spec, settings) + settings.arena_bytes
    here = 1 if settings.backend == ALONE else settings.ranks
    check_bytes(
        here * each,
        f"{here} ranks, with {spec.layers} layers and arenas of {settings.arena_bytes} bytes,",
        "fewer --layers, --experts or --ranks, or a smaller --arena-bytes",
    )


def check_pages(settings: BenchSettings, *, requests: int, pages: int, slot_bytes: int) -> None:
    """Return if so many pages of each request fit at all, each held once; nothing is asked of GPUs.

    Raises:
        Infeasible: they do not.
    """
    if settings.device == "cpu":
        check_bytes(
            requests * pages * slot_bytes,
            f"{requests} requests of {pages} pages of {slot_bytes} bytes",
            "a smaller --batch, fewer tokens, or a smaller --page-size",
        )


def weight_bytes(spec: ModelSpec, settings: BenchSettings) -> int:
    """The least that a rank keeps of the weights: its part, and its shards of the projections."""
    precision = named_precision(settings.dtype)
    rest = ModelBytes.of(spec, precision, num_ranks=settings.ranks).total
    return rest + projection_bytes(spec, elem_bytes=precision.kv_bytes) // settings.ranks


def check_bytes(num_bytes: int, what: str, nearest: str) -> None:
    """Return if so many bytes of the host's memory could be there; `what` takes them.

    Raises:
        Infeasible: they are not; `nearest` is what to ask for instead.
    """
    there = memory_limit()
    if num_bytes > there:
        raise Infeasible(
            f"{what} take {format_bytes(num_bytes)} at least, and this host has {format_bytes(there)}",
            nearest=nearest,
        )
