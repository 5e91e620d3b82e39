"""A rank's real engine: join the group's communicators, then read the weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from splash_core.dist.launch import LaunchConfig, rank_comms
from splash_core.engine.engine import RankEngine
from splash_core.ids import RankId
from splash_core.layout.slots import ArenaMap
from splash_core.rpc.rank_config import RankConfig
from splash_core.spec.model import ModelSpec
from splash_core.transport.arena_memory import ArenaMemory

_DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


def launch_config(config: RankConfig, rank: RankId) -> LaunchConfig:
    """How a rank joins its group; the operator's timeouts hold inside collectives too."""
    return LaunchConfig(
        rank=rank,
        num_ranks=config.num_ranks,
        rendezvous=config.rendezvous,
        join_timeout_s=config.start_timeout_s,
        collective_timeout_s=config.step_timeout_s,
    )


@contextmanager
def loaded_engine(
    config: RankConfig,
    rank: RankId,
    *,
    memory: ArenaMemory,
    spec: ModelSpec,
    arena: ArenaMap,
    progress: Callable[[int, int], None],
) -> Iterator[RankEngine]:
    """The engine of one rank; leaving the block takes the communicators down.

    Args:
        config: of the group.
        rank: this rank.
        memory: its arena.
        spec: the model.
        arena: the slot map.
        progress: called with (bytes read, bytes to read).
    """
    torch.set_num_threads(config.threads)
    with rank_comms(launch_config(config, rank)) as comms:
        yield RankEngine.load(
            Path(config.checkpoint),
            spec=spec,
            arena=arena,
            memory=memory.bytes_B,
            comms=comms,
            dtype=_DTYPES[config.dtype],
            layout=config.layout,
            progress=progress,
        )
