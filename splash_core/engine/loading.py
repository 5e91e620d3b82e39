"""A rank's real engine: join the group's communicators, take the arena's memory, read the weights, record
decode steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from splash_core.dist.comm import RankComms
from splash_core.dist.launch import LaunchConfig, rank_comms
from splash_core.dist.meeting import check_device
from splash_core.engine.engine import RankEngine
from splash_core.engine.recorded_steps import record_decode_steps
from splash_core.ids import RankId
from splash_core.kernels.dtypes import BY_NAME
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.rpc.rank_config import RankConfig
from splash_core.spec.model import ModelSpec
from splash_core.transport.device_memory import DeviceMemory
from splash_core.transport.drivers import open_driver
from splash_core.transport.kinds import DeviceKind
from splash_core.transport.memory import Memory


def rank_device(config: RankConfig, rank: RankId) -> torch.device:
    """Where a rank computes: the CPU, or its GPU, which has its own number where none is named."""
    if config.device == "cpu":
        return torch.device("cpu")
    return torch.device(config.device, config.gpus[rank] if config.gpus else rank)


def device_memory(config: RankConfig, rank: RankId, kind: DeviceKind, num_bytes: int) -> DeviceMemory:
    """An arena's memory on the rank's GPU, which other processes of the host may map.

    Raises:
        ConfigError: there is no such GPU, it has not so much memory left, or its driver shares none.
    """
    device = rank_device(config, rank)
    check_device(device)
    torch.cuda.set_device(device)
    return DeviceMemory(num_bytes, open_driver(kind, device.index))


def launch_config(config: RankConfig, rank: RankId) -> LaunchConfig:
    """How a rank joins its group; the operator's timeouts hold inside collectives too."""
    return LaunchConfig(
        rank=rank,
        num_ranks=config.num_ranks,
        rendezvous=config.rendezvous,
        device=rank_device(config, rank),
        join_timeout_s=config.start_timeout_s,
        collective_timeout_s=config.step_timeout_s,
        transfer_max_ctas=config.transfer_max_ctas,
    )


@contextmanager
def loaded_engine(
    config: RankConfig,
    rank: RankId,
    *,
    memory: Memory | None,
    spec: ModelSpec,
    arena: ArenaMap,
    progress: Callable[[int, int], None],
) -> Iterator[RankEngine]:
    """The engine of one rank, its decode steps recorded; leaving the block takes the communicators down.

    Args:
        config: of the group.
        rank: this rank.
        memory: its arena, which other processes may map; None: taken on the rank's device, for it alone.
        spec: the model.
        arena: the slot map.
        progress: called with (bytes read, bytes to read).

    Raises:
        ConfigError: recorded decode steps take more memory than is set aside for them.
    """
    torch.set_num_threads(config.threads)
    with rank_comms(launch_config(config, rank)) as comms:
        engine = _with_weights(
            config,
            spec=spec,
            arena=arena,
            memory=arena_tensor(arena, comms.device) if memory is None else memory.bytes_B,
            comms=comms,
            progress=progress,
        )
        engine.layers_ahead = config.switch_layers_ahead
        engine.reserve_staging(config.staging_bytes)
        if config.graph_layouts:
            engine.graphs = record_decode_steps(
                engine.ctx,
                layouts=config.graph_layouts,
                buckets=config.graph_buckets,
                comm=comms.recorded,
                budget_bytes=config.graph_bytes,
            )
        yield engine


def _with_weights(
    config: RankConfig,
    *,
    spec: ModelSpec,
    arena: ArenaMap,
    memory: Tensor,
    comms: RankComms,
    progress: Callable[[int, int], None],
) -> RankEngine:
    """An engine with the checkpoint's weights, or with random ones."""
    common: _EngineParts = {
        "spec": spec,
        "arena": arena,
        "memory": memory,
        "comms": comms,
        "dtype": BY_NAME[config.dtype],
        "layout": config.layout,
    }
    if config.dummy_seed is not None:
        return RankEngine.random(config.dummy_seed, **common)
    return RankEngine.load(Path(config.checkpoint), progress=progress, **common)


class _EngineParts(TypedDict):
    """What both ways to make an engine take."""

    spec: ModelSpec
    arena: ArenaMap
    memory: Tensor
    comms: RankComms
    dtype: torch.dtype
    layout: Layout


def arena_tensor(arena: ArenaMap, device: torch.device) -> Tensor:
    """An arena's memory on a device, `[arena_bytes]` uint8, zero-filled: unwritten KV must be finite."""
    return torch.zeros(arena.arena_bytes, dtype=torch.uint8, device=device)
