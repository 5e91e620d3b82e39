"""The arena's memory and its ABI: shared pages, fixed size, readable differences."""

import contextlib
import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.router.pairing import why_not_ready
from services.router.records import GroupRecord
from splash_core.errors import ConfigError, Conflict, Unavailable
from splash_core.pb import control_pb2
from splash_core.rpc.abi import abi_to_pb
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.memory_server import MemoryServer, fetch_memory
from splash_core.transport.options import MOONCAKE, SHM, TransportOptions
from splash_core.transport.shm import ShmTransport
from tests.support.transports import ABI as PEER_ABI
from tests.support.transports import WITHIN_S, peer_process

ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=32, rope_dim=8, rope="", scale="", model="m"
)


def test_equal_abis_have_no_difference() -> None:
    assert abi_diff(ABI, replace(ABI)) == []


def test_each_differing_field_is_one_line() -> None:
    assert abi_diff(ABI, replace(ABI, layers=3, dtype="bf16")) == [
        "dtype: ours 'fp32', theirs 'bf16'",
        "layers: ours 2, theirs 3",
    ]
    named = abi_diff(ABI, replace(ABI, layers=3), names=("prefill has", "decode has"))
    assert named == ["layers: prefill has 2, decode has 3"]


def test_groups_of_different_transports_do_not_pair_and_the_field_is_named() -> None:
    prefill, decode = (
        GroupRecord(
            address=phase,
            phase=phase,
            description=control_pb2.GroupDescription(group=phase, phase=phase, abi=abi_to_pb(abi)),
            state=control_pb2.GroupState(state="ready"),
        )
        for phase, abi in (
            ("prefill", replace(ABI, transport=TransportOptions().speaks)),
            ("decode", replace(ABI, transport=TransportOptions(name=MOONCAKE, protocol="rdma").speaks)),
        )
    )
    assert why_not_ready([prefill], [decode]) == [
        "prefill and decode differ in transport: prefill has 'shm 3', decode has 'mooncake rdma 2'"
    ]


def test_memory_starts_as_zeros_and_views_outlive_the_descriptor() -> None:
    memory = ArenaMemory(10_000)
    view_N = memory.bytes_B[:8000].view(torch.float32)
    memory.close()
    memory.close()
    assert memory.bytes_B.count_nonzero() == 0
    view_N += 1
    assert memory.bytes_B[:4].view(torch.float32).item() == 1


def test_a_peer_maps_the_same_pages_and_cannot_shrink_them() -> None:
    memory = ArenaMemory(8192)
    server = MemoryServer(memory, ABI)
    found = fetch_memory(server.address, ABI, timeout_s=5)
    server.close()
    server.close()
    offer = found.offer
    assert (found.pid, offer.kind, offer.num_bytes) == (os.getpid(), "host", 8192)
    with mmap.mmap(offer.fd, 8192) as theirs:
        memory.bytes_B[17] = 3
        assert theirs[17] == 3
        theirs[8191] = 9
        assert memory.bytes_B[8191] == 9
    with pytest.raises(PermissionError):
        os.ftruncate(offer.fd, 4096)
    os.close(offer.fd)
    memory.close()


def test_touching_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ArenaMemory(3 * mmap.PAGESIZE)
    memory.write(5, b"abc")
    memory.touch()
    # As on a kernel that does not know the call.
    monkeypatch.setattr("splash_core.transport.arena_memory._POPULATE_WRITE", 9999)
    memory.touch()
    assert memory.read(0, 9) == b"\0\0\0\0\0abc\0"
    memory.close()


@pytest.mark.parametrize("num_bytes", [0, -5, 2**62])
def test_an_impossible_size_is_a_setting_error(num_bytes: int) -> None:
    with pytest.raises(ConfigError):
        ArenaMemory(num_bytes)


def test_an_address_of_another_transport_is_refused() -> None:
    with pytest.raises(Unavailable, match="shm:"):
        fetch_memory("mooncake://127.0.0.1:1", ABI, timeout_s=1)


def test_the_owner_is_who_the_kernel_says_it_is() -> None:
    with peer_process(SHM, 4096) as peer:
        found = fetch_memory(peer.address, PEER_ABI, timeout_s=WITHIN_S)
        os.close(found.offer.fd)
        assert found.pid == peer.process.pid


def test_an_owner_that_cannot_be_seen_from_here_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the kernel tells of a process in a pid namespace that is not ours nor below it."""
    memory = ArenaMemory(8192)
    server, transport = MemoryServer(memory, ABI), ShmTransport()
    monkeypatch.setattr("splash_core.dist.fd_passing.peer_of", lambda _: (0, os.getuid()))
    before = _descriptors(memory)
    with pytest.raises(Conflict, match=r"another pid namespace.*shareProcessNamespace"):
        transport.connect(server.address, ABI)
    assert transport.connected(server.address) is None
    assert _descriptors(memory) == before
    transport.close(drain=False)
    server.close()
    memory.close()


def test_another_abi_is_refused_and_its_descriptor_closed() -> None:
    memory = ArenaMemory(8192)
    server = MemoryServer(memory, ABI)
    before = _descriptors(memory)
    with pytest.raises(Conflict, match="layers: ours 3, theirs 2"):
        fetch_memory(server.address, replace(ABI, layers=3), timeout_s=5)
    assert _descriptors(memory) == before
    server.close()
    memory.close()


def _descriptors(memory: ArenaMemory) -> int:
    """How many this process has of some memory."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.path.sameopenfile(int(entry.name), memory.fd)
    return found


def test_memory_that_cannot_be_mapped_is_the_peers_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, length: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    memory = ArenaMemory(8192)
    server = MemoryServer(memory, ABI)
    transport = ShmTransport()
    with monkeypatch.context() as patch:
        patch.setattr("splash_core.transport.host_copies.mmap.mmap", no_room)
        with pytest.raises(Unavailable, match="Cannot allocate memory"):
            transport.connect(server.address, ABI)
    assert transport.connect(server.address, ABI).num_bytes == 8192
    transport.close(drain=False)
    server.close()
    memory.close()
