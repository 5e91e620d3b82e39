"""Brings the ranks of a group together: the only place that makes process groups and shared segments.

Two communicators over the same ranks come out of it, both warmed up (docs/model.md §5). Invariant: it ends
within its deadline, and a peer that does not come is named.
"""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its stores but does not list them as exported.

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from splash_core.dist.comm import Comm, RankComms
from splash_core.dist.fd_passing import fetch_fd, fresh_address, hand_out_fd, listen
from splash_core.dist.futex import SUPPORTED_MACHINE
from splash_core.dist.gloo import GlooComm
from splash_core.dist.shm import ShmComm
from splash_core.dist.shm_segment import Segment, create_segment
from splash_core.errors import ConfigError, GroupFailed
from splash_core.ids import RankId
from splash_core.obs.lifeline import host_identity

_POLL_S = 0.01


class Backend(StrEnum):
    """What carries the collectives."""

    AUTO = "auto"
    """shm if all ranks share one x86-64 host, else gloo."""
    SHM = "shm"
    GLOO = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How one rank finds its group.

    Attributes:
        rank: this rank.
        num_ranks: T.
        rendezvous: `file:///path` (a fresh file, one per life of the group) or `tcp://host:port` (rank 0
            listens there).
        backend: see `Backend`; all ranks must say the same.
        device: `cpu`.
        join_timeout_s: for all peers to come.
        collective_timeout_s: longest wait for a peer inside one collective.
    """

    rank: RankId
    num_ranks: int
    rendezvous: str
    backend: Backend = Backend.AUTO
    device: torch.device = torch.device("cpu")
    join_timeout_s: float = 60.0
    collective_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Presence:
    """What a rank tells the others about itself; equal `host` means that memory can be shared."""

    host: str
    machine: str
    pid: int
    backend: str


@contextmanager
def rank_comms(config: LaunchConfig) -> Iterator[RankComms]:
    """Join the group and yield the rank's communicators; leaving the block takes them down.

    Raises:
        ConfigError: an unusable rendezvous, backend or device.
        GroupFailed: a peer did not come in time; the message names the missing ranks.
    """
    if config.device.type != "cpu":
        raise ConfigError(
            f"device {config.device} is not served yet: NCCL comes with the GPU engine; use cpu"
        )
    if not 0 <= config.rank < config.num_ranks:
        raise ConfigError(f"rank {config.rank} is not in a group of {config.num_ranks}")
    with ExitStack() as stack:
        store = _open_store(config)
        peers = _meet(store, config)
        backend = _choose(config, peers)
        make = _shm_pair if backend is Backend.SHM else _gloo_pair
        compute, transfer = make(store, config, peers, stack)
        for comm in (compute, transfer):
            comm.barrier()
        yield RankComms(compute=compute, transfer=transfer, device=config.device)


def _open_store(config: LaunchConfig) -> dist.Store:
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


def _meet(store: dist.Store, config: LaunchConfig) -> list[_Presence]:
    """Announce this rank, wait for the others, and return everybody's announcement in rank order."""
    mine = _Presence(
        host=host_identity(), machine=os.uname().machine, pid=os.getpid(), backend=config.backend.value
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
            time.sleep(_POLL_S)
    return [_Presence(**json.loads(store.get(f"rank/{rank}"))) for rank in range(config.num_ranks)]


def _choose(config: LaunchConfig, peers: Sequence[_Presence]) -> Backend:
    asked = sorted({peer.backend for peer in peers})
    if len(asked) > 1:
        raise ConfigError(f"the ranks ask for different backends: {asked}")
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


def _shm_pair(
    store: dist.Store, config: LaunchConfig, peers: Sequence[_Presence], stack: ExitStack
) -> tuple[Comm, Comm]:
    def make(name: str) -> Comm:
        fd = _share_segment(store, config, name)
        try:
            segment = Segment(fd, config.num_ranks)
        finally:
            os.close(fd)
        comm = ShmComm(
            segment, config.rank, pids=[peer.pid for peer in peers], timeout_s=config.collective_timeout_s
        )
        stack.callback(comm.close)
        return comm

    return make("compute"), make("transfer")


def _share_segment(store: dist.Store, config: LaunchConfig, name: str) -> int:
    """Rank 0 creates the segment and hands it out; all ranks return a descriptor of it."""
    key = f"segment/{name}"
    if config.rank > 0:
        fd, _ = fetch_fd(store.get(key).decode(), timeout_s=config.join_timeout_s)
        return fd
    fd = create_segment(config.num_ranks)
    address = fresh_address()
    with listen(address) as server:
        store.set(key, address)
        hand_out_fd(server, fd, clients=config.num_ranks - 1, timeout_s=config.join_timeout_s)
    return fd


def _gloo_pair(
    store: dist.Store, config: LaunchConfig, peers: Sequence[_Presence], stack: ExitStack
) -> tuple[Comm, Comm]:
    timeout = timedelta(seconds=config.collective_timeout_s)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("gloo", store),
        rank=config.rank,
        world_size=len(peers),
        timeout=timeout,
    )
    stack.callback(dist.destroy_process_group)

    def make() -> Comm:
        group = dist.new_group(list(range(len(peers))), timeout=timeout, backend="gloo")
        if not isinstance(group, dist.ProcessGroup):
            raise GroupFailed(f"rank {config.rank} is not a member of the group it joined")
        comm = GlooComm(group)
        stack.callback(comm.close)
        return comm

    return make(), make()
