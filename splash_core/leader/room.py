"""The arena of a group's ranks, from settings: how much KV room there is, or what was asked for.

Invariant: what is asked for fits the memory that there is, or is refused with the most that would.
"""

from pathlib import Path

from splash_core.config import GroupSettings, WorkerSettings
from splash_core.cost.footprint import Deployment, ModelBytes
from splash_core.cost.precision import named_precision
from splash_core.errors import Infeasible
from splash_core.layout.layout import Matrix
from splash_core.layout.slots import ArenaMap, page_bytes
from splash_core.leader.host import free_memory, memory_limit
from splash_core.leader.sizing import (
    HostMemory,
    default_kv_bytes,
    gpu_kv_bytes,
    projection_bytes,
)
from splash_core.rpc.rank_config import ELEM_BYTES
from splash_core.spec.fields import read_json
from splash_core.spec.hardware import GpuSpec, named_gpu
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import STAGING_PARTS, chunk_bytes
from splash_core.units import format_bytes

_AUTO_DTYPE = {"cpu": "fp32", "cuda": "bf16"}
_STORED_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def element_type(settings: WorkerSettings) -> str:
    """What ranks compute in; `auto` is by device."""
    return _AUTO_DTYPE[settings.device] if settings.dtype == "auto" else settings.dtype


def computes_on(settings: GroupSettings) -> GpuSpec:
    """Figures of what the ranks compute on."""
    return named_gpu("cpu" if settings.device == "cpu" else settings.gpu)


def draw_arena(
    settings: GroupSettings, spec: ModelSpec, checkpoint: Path, dtype: str, *, graph_bytes: int = 0
) -> ArenaMap:
    """The arena of a rank: all projections, and KV room beside them.

    Args:
        settings: of the group.
        spec: the model.
        checkpoint: its folder.
        dtype: of weights and KV.
        graph_bytes: set aside on a GPU for recorded decode steps.

    Raises:
        Infeasible: the KV room or the staging holds no page, or there is not so much memory.
    """
    elem_bytes = ELEM_BYTES[dtype]
    slot = page_bytes(spec, page_size=settings.page_size, elem_bytes=elem_bytes)

    def build(arena_bytes: int) -> ArenaMap:
        return ArenaMap.build(
            spec,
            num_ranks=settings.ranks,
            page_size=settings.page_size,
            elem_bytes=elem_bytes,
            arena_bytes=arena_bytes,
        )

    # Where the weights end depends on the gaps between them: at most one slot a matrix.
    gaps = spec.num_mla_layers * len(Matrix) * slot
    trial = build(projection_bytes(spec, elem_bytes=elem_bytes) + gaps + 2 * slot)
    region = trial.region_slots * slot
    kv_bytes = settings.kv_bytes or _default_room(settings, spec, checkpoint, dtype, region, graph_bytes)
    if kv_bytes < slot:
        raise Infeasible(
            f"--kv-bytes {kv_bytes} holds no page: one page of {settings.page_size} tokens has {slot} bytes",
            nearest=f"--kv-bytes {slot}",
        )
    if settings.kv_bytes:
        _check_room(settings, _most_room(settings, region), slot)
    if chunk_bytes(settings.staging_bytes) < slot:
        raise Infeasible(
            f"--staging-bytes {settings.staging_bytes} is too little to move a page of {slot} bytes",
            nearest=f"--staging-bytes {STAGING_PARTS * slot}",
        )
    return build(region + kv_bytes)


def _default_room(
    settings: GroupSettings, spec: ModelSpec, checkpoint: Path, dtype: str, region: int, graph_bytes: int
) -> int:
    """KV room of a rank when nobody says; `region` is where its projections lie, bytes."""
    if settings.device == "cpu":
        host = _host(settings, spec, checkpoint, dtype)
        return default_kv_bytes(spec, host, page_size=settings.page_size, elem_bytes=ELEM_BYTES[dtype])
    gpu = computes_on(settings)
    deployment = Deployment(
        precision=named_precision(dtype),
        num_ranks=settings.ranks,
        memory_bytes=gpu.memory_bytes,
        fraction=settings.memory_fraction,
        page_size=settings.page_size,
        chunk_tokens=settings.chunk_tokens,
        runtime_bytes=gpu.runtime_bytes,
        graph_bytes=graph_bytes,
    )
    return gpu_kv_bytes(spec, deployment, weights_region_bytes=region, staging_bytes=settings.staging_bytes)


def _most_room(settings: GroupSettings, region: int) -> int:
    """What may be asked for: memory that others use now counts as free, memory that nobody has does not.

    Ranks on CPU write a page's memory when they use it, and their weights' files may be shared, so the host's
    memory is divided among its ranks and nothing is set aside.
    """
    if settings.device != "cpu":
        return computes_on(settings).memory_bytes - region
    return memory_limit() // (settings.host_ranks or settings.ranks)


def _check_room(settings: GroupSettings, most: int, slot: int) -> None:
    if settings.kv_bytes > most:
        raise Infeasible(
            f"--kv-bytes {settings.kv_bytes} ({format_bytes(settings.kv_bytes)} for each rank) is more than "
            "there is memory",
            nearest=f"--kv-bytes {max(most // slot, 1) * slot}",
        )


def _host(settings: GroupSettings, spec: ModelSpec, checkpoint: Path, dtype: str) -> HostMemory:
    if settings.load_format == "dummy":
        stored = ELEM_BYTES[dtype]
        rest = ModelBytes.of(spec, named_precision(dtype), num_ranks=1).total
        checkpoint_bytes = rest + projection_bytes(spec, elem_bytes=stored)
    else:
        config = read_json(checkpoint / "config.json")
        stored = _STORED_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
        checkpoint_bytes = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    return HostMemory(
        free_bytes=free_memory(),
        ranks=settings.host_ranks or settings.ranks,
        checkpoint_bytes=checkpoint_bytes,
        stored_elem_bytes=stored,
    )
