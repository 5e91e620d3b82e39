"""How the ranks of a group find each other, and what they agree to talk through.

Invariant: joining ends within its deadline; a peer that does not come, or that cannot work with the others,
is named with the remedy.
"""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its stores but does not list them as exported.

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from splash_core.dist.futex import SUPPORTED_MACHINE
from splash_core.dist.nccl_packages import check_nccl_packages, installed_nccl
from splash_core.errors import ConfigError, GroupFailed
from splash_core.ids import RankId
from splash_core.obs.lifeline import host_identity
from splash_core.units import TRANSFER_CTAS

POLL_S = 0.01


class Backend(StrEnum):
    """What carries the collectives."""

    AUTO = "auto"
    """On GPUs nccl; else shm if all ranks share one x86-64 host, else gloo."""
    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How one rank finds its group.

    Attributes:
        rank: this rank.
        num_ranks: T.
        rendezvous: `file:///path` (a fresh file, one per life of the group) or `tcp://host:port` (rank 0
            listens there).
        backend: see `Backend`; all ranks must say the same.
        device: `cpu`, or this rank's own `cuda:INDEX`; all ranks compute on the same kind.
        join_timeout_s: for all peers to come.
        collective_timeout_s: longest wait for a peer inside one collective.
        transfer_max_ctas: thread blocks that the transfer communicator may take from a GPU: more of them move
            state faster and slow the computation beside it.
    """

    rank: RankId
    num_ranks: int
    rendezvous: str
    backend: Backend = Backend.AUTO
    device: torch.device = torch.device("cpu")
    join_timeout_s: float = 60.0
    collective_timeout_s: float = 60.0
    transfer_max_ctas: int = TRANSFER_CTAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a rank tells the others about itself; equal `host` means that memory can be shared."""

    host: str
    machine: str
    pid: int
    backend: str
    gpu: str
    """Identifier of its GPU, empty on CPU."""


def check_device(device: torch.device) -> None:
    """Refuse a device that this process cannot compute on.

    Raises:
        ConfigError: names the device and the remedy.
    """
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise ConfigError(f"device {device} is not served: use cpu or cuda")
    check_nccl_packages(installed_nccl(), torch.version.cuda)
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise ConfigError(
            f"device {device}: torch {torch.__version__} sees no GPU; install a CUDA build of torch, check "
            "that nvidia-smi lists the GPU, or use cpu"
        )
    if device.index is None or device.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(
            f"device {device}: this host has cuda:0 … cuda:{last}, and each rank needs another one. Services: "
            "fewer ranks, or --gpus (of splash up: --prefill-gpus and --decode-gpus, which may share GPUs, "
            "each with its part of --memory-fraction)"
        )


def open_store(config: LaunchConfig) -> dist.Store:
    """The store at which the group's ranks meet.

    Raises:
        ConfigError: an unusable rendezvous.
        GroupFailed: rank 0's store cannot be reached.
    """
    url = urlsplit(config.rendezvous)
    timeout = timedelta(seconds=config.join_timeout_s)
    if url.scheme == "file" and url.path and not url.netloc:
        if not Path(url.path).parent.is_dir():
            raise ConfigError(f"rendezvous {config.rendezvous}: its folder does not exist")
        store: dist.Store = dist.FileStore(url.path, config.num_ranks)
        store.set_timeout(timeout)
        return store
    if url.scheme == "tcp" and url.hostname and url.port:
        try:
            return dist.TCPStore(
                url.hostname,
                url.port,
                config.num_ranks,
                is_master=config.rank == 0,
                timeout=timeout,
                wait_for_workers=False,
            )
        except (RuntimeError, dist.DistError) as error:
            raise GroupFailed(
                f"rank {config.rank} cannot reach rank 0 at {config.rendezvous}: {error}"
            ) from error
    raise ConfigError(f"rendezvous must be file:///path or tcp://host:port, got {config.rendezvous!r}")


def meet(store: dist.Store, config: LaunchConfig) -> list[Presence]:
    """Announce this rank, wait for the others, and return everybody's announcement in rank order."""
    on_gpu = config.device.type == "cuda"
    mine = Presence(
        host=host_identity(),
        machine=os.uname().machine,
        pid=os.getpid(),
        backend=config.backend.value,
        gpu=str(torch.cuda.get_device_properties(config.device).uuid) if on_gpu else "",
    )
    store.set(f"rank/{config.rank}", json.dumps(asdict(mine)))
    deadline = time.monotonic() + config.join_timeout_s
    missing = list(range(config.num_ranks))
    while missing:
        missing = [rank for rank in missing if not store.check([f"rank/{rank}"])]
        if missing and time.monotonic() > deadline:
            raise GroupFailed(
                f"rank {config.rank} waited {config.join_timeout_s:g} s at {config.rendezvous} for ranks "
                f"{missing} of {config.num_ranks}; are their processes running?"
            )
        if missing:
            time.sleep(POLL_S)
    return [Presence(**json.loads(store.get(f"rank/{rank}"))) for rank in range(config.num_ranks)]


def choose(config: LaunchConfig, peers: Sequence[Presence]) -> Backend:
    """What the group talks through; the same answer on every rank.

    Raises:
        ConfigError: the ranks do not go together, or the backend does not fit them.
    """
    asked = sorted({peer.backend for peer in peers})
    if len(asked) > 1:
        raise ConfigError(f"the ranks ask for different backends: {asked}")
    on_gpu = config.device.type == "cuda"
    if on_gpu or config.backend is Backend.NCCL or any(peer.gpu for peer in peers):
        return _choose_nccl(config, peers)
    shareable = len({peer.host for peer in peers}) == 1 and all(
        peer.machine == SUPPORTED_MACHINE for peer in peers
    )
    if config.backend is Backend.SHM and not shareable:
        raise ConfigError(
            f"shm needs all ranks on one {SUPPORTED_MACHINE} host and in one container; use gloo"
        )
    if config.backend is Backend.AUTO:
        return Backend.SHM if shareable else Backend.GLOO
    return config.backend


def _choose_nccl(config: LaunchConfig, peers: Sequence[Presence]) -> Backend:
    on_cpu = [rank for rank, peer in enumerate(peers) if not peer.gpu]
    if on_cpu:
        raise ConfigError(f"ranks {on_cpu} compute on cpu: nccl needs all ranks on cuda")
    if config.backend not in (Backend.AUTO, Backend.NCCL):
        raise ConfigError(f"backend {config.backend} carries host memory only; on cuda use nccl or auto")
    for peer in peers:
        sharing = [rank for rank, there in enumerate(peers) if there.gpu == peer.gpu]
        if len(sharing) > 1:
            raise ConfigError(f"ranks {sharing} are on one GPU ({peer.gpu}); give each rank its own device")
    return Backend.NCCL
