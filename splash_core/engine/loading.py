"""A rank's real engine: join the group's communicators, take the arena's memory, then read the weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from splash_core.dist.launch import LaunchConfig, rank_comms
from splash_core.engine.engine import RankEngine
from splash_core.ids import RankId
from splash_core.kernels.dtypes import BY_NAME
from splash_core.layout.slots import ArenaMap
from splash_core.rpc.rank_config import RankConfig
from splash_core.spec.model import ModelSpec
from splash_core.transport.arena_memory import ArenaMemory


def rank_device(config: RankConfig, rank: RankId) -> torch.device:
    """Where a rank computes: the CPU, or the GPU of its host with its own number."""
    return torch.device("cpu") if config.device == "cpu" else torch.device(config.device, rank)


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
    memory: ArenaMemory | None,
    spec: ModelSpec,
    arena: ArenaMap,
    progress: Callable[[int, int], None],
) -> Iterator[RankEngine]:
    """The engine of one rank; leaving the block takes the communicators down.

    Args:
        config: of the group.
        rank: this rank.
        memory: its arena, where other processes may map it; None: taken on the rank's device.
        spec: the model.
        arena: the slot map.
        progress: called with (bytes read, bytes to read).
    """
    torch.set_num_threads(config.threads)
    with rank_comms(launch_config(config, rank)) as comms:
        engine = RankEngine.load(
            Path(config.checkpoint),
            spec=spec,
            arena=arena,
            memory=arena_tensor(arena, comms.device) if memory is None else memory.bytes_B,
            comms=comms,
            dtype=BY_NAME[config.dtype],
            layout=config.layout,
            progress=progress,
        )
        engine.layers_ahead = config.switch_layers_ahead
        engine.reserve_staging(config.staging_bytes)
        yield engine


def arena_tensor(arena: ArenaMap, device: torch.device) -> Tensor:
    """An arena's memory on a device, `[arena_bytes]` uint8, zero-filled: unwritten KV must be finite."""
    return torch.zeros(arena.arena_bytes, dtype=torch.uint8, device=device)
