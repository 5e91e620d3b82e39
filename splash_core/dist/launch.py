"""Brings the ranks of a group together: the only place that makes process groups and shared segments.

Two communicators over the same ranks come out of it, both warmed up (docs/model.md §5). Invariant: it ends
within its deadline, and a peer that does not come is named.
"""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its stores but does not list them as exported.

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist

from splash_core.dist.comm import Comm, RankComms, Transfer
from splash_core.dist.fd_passing import fetch_fd, fresh_address, hand_out_fd, listen
from splash_core.dist.gloo import GlooComm
from splash_core.dist.meeting import (
    POLL_S,
    Backend,
    LaunchConfig,
    Presence,
    check_device,
    choose,
    meet,
    open_store,
)
from splash_core.dist.nccl import NcclComm, nccl_comm
from splash_core.dist.oneshot import OneShotComm
from splash_core.dist.shm import ShmComm
from splash_core.dist.shm_segment import Segment, create_segment
from splash_core.dist.sharing import HostSharing
from splash_core.errors import ConfigError, GroupFailed
from splash_core.ids import RankId

_log = logging.getLogger("splash.dist")

ONE_SHOT_BYTES = 4 << 20
"""Memory of each GPU that its peers read small messages from; half of it is the largest message."""

_FAREWELL_S = 5.0
"""How long a rank waits for the others before it frees what they may still be reading."""


@contextmanager
def rank_comms(config: LaunchConfig) -> Iterator[RankComms]:
    """Join the group and yield the rank's communicators; leaving the block takes them down.

    Raises:
        ConfigError: an unusable rendezvous, backend or device.
        GroupFailed: a peer did not come in time; the message names the missing ranks.
    """
    check_device(config.device)
    if not 0 <= config.rank < config.num_ranks:
        raise ConfigError(f"rank {config.rank} is not in a group of {config.num_ranks}")
    with ExitStack() as stack:
        store = open_store(config)
        peers = meet(store, config)
        backend = choose(config, peers)
        compute, transfer = _PAIRS[backend](store, config, peers, stack)
        for comm in (compute, transfer):
            comm.barrier()
        one_host = len({peer.host for peer in peers}) == 1
        sharing: HostSharing | None = None
        if isinstance(compute, NcclComm) and one_host and compute.size > 1:
            sharing = HostSharing(compute, config.device)
        messages = None if sharing is None else sharing.take(ONE_SHOT_BYTES)
        yield RankComms(
            compute=compute,
            transfer=transfer,
            device=config.device,
            small=None if messages is None else OneShotComm(compute, messages),
            sharing=None if messages is None else sharing,
        )


def _shm_pair(
    store: dist.Store, config: LaunchConfig, peers: Sequence[Presence], stack: ExitStack
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
        return fetch_fd(store.get(key).decode(), timeout_s=config.join_timeout_s).fd
    fd = create_segment(config.num_ranks)
    address = fresh_address()
    with listen(address) as server:
        store.set(key, address)
        hand_out_fd(server, fd, clients=config.num_ranks - 1, timeout_s=config.join_timeout_s)
    return fd


def _gloo_pair(
    store: dist.Store, config: LaunchConfig, peers: Sequence[Presence], stack: ExitStack
) -> tuple[Comm, Comm]:
    timeout = _join_job(Backend.GLOO, store, config)
    stack.callback(dist.destroy_process_group)

    def make() -> Comm:
        group = dist.new_group(list(range(len(peers))), timeout=timeout, backend="gloo")
        if not isinstance(group, dist.ProcessGroup):
            raise GroupFailed(f"rank {config.rank} is not a member of the group it joined")
        comm = GlooComm(group)
        stack.callback(comm.close)
        return comm

    return make(), make()


def _nccl_pair(
    store: dist.Store, config: LaunchConfig, peers: Sequence[Presence], stack: ExitStack
) -> tuple[Comm, Comm]:
    torch.cuda.set_device(config.device)
    _join_job(Backend.NCCL, store, config)

    def make(max_ctas: int | None) -> NcclComm:
        return nccl_comm(
            num_ranks=len(peers),
            device=config.device,
            timeout_s=config.collective_timeout_s,
            max_ctas=max_ctas,
        )

    comms = make(None), make(config.transfer_max_ctas)

    def take_down(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        if kind is None:
            _part(store, config)
        for comm in comms:
            comm.close()
        # Would free what graphs have captured as well, and wait for them for ever.
        if not any(comm.captured for comm in comms):
            dist.destroy_process_group()

    stack.push(take_down)
    for comm in comms:
        _connect(comm, config.device)
    return comms


def _connect(comm: NcclComm, device: torch.device) -> None:
    """Send a byte to every rank: NCCL connects two ranks at their first message, which takes a while."""
    peers = [RankId(peer) for peer in range(comm.size) if peer != comm.rank]
    byte = torch.zeros(1, dtype=torch.uint8, device=device)
    comm.exchange(
        [Transfer(peer, byte) for peer in peers],
        [Transfer(peer, torch.empty_like(byte)) for peer in peers],
        tag="launch.connect",
    )


def _part(store: dist.Store, config: LaunchConfig) -> None:
    """Wait a little until every rank is done: buffers freed early would fail a peer's last collective."""
    torch.cuda.synchronize(config.device)
    end = time.monotonic() + _FAREWELL_S
    with suppress(RuntimeError):  # the store ends with rank 0, which goes when all are done
        left = store.add("left", 1)
        while left < config.num_ranks and time.monotonic() < end:
            time.sleep(POLL_S)
            left = store.add("left", 0)


def _join_job(backend: Backend, store: dist.Store, config: LaunchConfig) -> timedelta:
    """Make torch's default group, which carries nothing itself; returns the collectives' timeout."""
    timeout = timedelta(seconds=config.collective_timeout_s)
    dist.init_process_group(
        backend.value,
        store=dist.PrefixStore(backend.value, store),
        rank=config.rank,
        world_size=config.num_ranks,
        timeout=timeout,
    )
    return timeout


_PAIRS = {Backend.SHM: _shm_pair, Backend.GLOO: _gloo_pair, Backend.NCCL: _nccl_pair}
