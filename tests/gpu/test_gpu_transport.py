"""Arenas in GPU memory between processes of one host: what the transport promises, on one GPU and on two.

Run with `python -m pytest -m gpu tests/gpu/test_gpu_transport.py`.
"""

import ctypes
import os
import threading

import pytest
import torch

from splash_core.transport.base import OpState
from splash_core.transport.cuda_driver import CudaDriver
from splash_core.transport.cuda_library import CudaLibrary
from splash_core.transport.device_memory import DeviceMemory
from splash_core.transport.memory import Copy
from tests.distributed.test_transport_processes import (
    WHOLE,
    healthy,
    peer,
    test_a_frozen_peer_is_not_written_to_and_holds_up_nobody,
    test_a_peer_frozen_between_handshake_and_first_write_holds_up_nobody,
    test_a_peer_frozen_in_the_middle_holds_up_nobody_and_gets_no_byte_after_quiet,
    test_a_peer_killed_in_the_middle_fails_its_write_and_nobody_else_s,
    test_a_peer_that_was_killed_before_fails_the_write_at_once,
    test_closing_waits_for_a_frozen_peer_and_then_nothing_lands,
    test_pages_cross_processes_whole_and_in_their_places,
    writer,
)
from tests.support.gpus import NUM_GPUS, run_to_the_end
from tests.support.transports import (
    ABI,
    WITHIN_S,
    Descriptor,
    PeerProcess,
    eventually,
    new_writer,
    peer_process,
)

__all__ = [
    "healthy",
    "peer",
    "test_a_frozen_peer_is_not_written_to_and_holds_up_nobody",
    "test_a_peer_frozen_between_handshake_and_first_write_holds_up_nobody",
    "test_a_peer_frozen_in_the_middle_holds_up_nobody_and_gets_no_byte_after_quiet",
    "test_a_peer_killed_in_the_middle_fails_its_write_and_nobody_else_s",
    "test_a_peer_that_was_killed_before_fails_the_write_at_once",
    "test_closing_waits_for_a_frozen_peer_and_then_nothing_lands",
    "test_pages_cross_processes_whole_and_in_their_places",
    "writer",
]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BACKENDS = [f"cuda:0>{last}" for last in range(min(max(NUM_GPUS, 1), 2))]
"""Within a GPU, and from one to another where there are two."""
MIB = 1 << 20


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    assert NUM_GPUS > 0, "torch sees no GPU"
    return str(request.param)


@pytest.mark.parametrize("num_bytes", [1, 5 * MIB + 3])
def test_memory_is_one_allocation_of_zeros_that_torch_computes_on(num_bytes: int) -> None:
    index = NUM_GPUS - 1
    memory = DeviceMemory(num_bytes, CudaDriver(index))
    bytes_B = memory.bytes_B
    assert (bytes_B.device, bytes_B.dtype) == (torch.device("cuda", index), torch.uint8)
    assert (bytes_B.shape, bytes_B.data_ptr()) == ((num_bytes,), memory.address)
    assert not bytes_B.any()
    bytes_B += 3
    assert int(bytes_B.sum()) == 3 * num_bytes
    memory.close()


@pytest.mark.parametrize("there", range(min(max(NUM_GPUS, 1), 2)))
def test_memory_is_mapped_by_its_descriptor_and_outlives_it(there: int) -> None:
    """Into another GPU's addresses too; the copies land in order."""
    here = CudaDriver(0)
    source, target = DeviceMemory(MIB, here), DeviceMemory(MIB, CudaDriver(there))
    source.bytes_B.fill_(5)
    torch.cuda.synchronize(0)
    offer = target.offer()
    mapped = source.copies().attach(offer)
    os.close(offer.fd)
    target.close()
    assert mapped.num_bytes == MIB
    landings = [here.copy([Copy(mapped.address + at, source.address, 1000)]) for at in (0, 500, MIB - 1000)]
    eventually(lambda: landings[-1].over, "the last copy has landed")
    assert all(landing.over for landing in landings)
    assert int(target.bytes_B.sum()) == 5 * (1500 + 1000)
    mapped.release()
    mapped.release()


def test_memory_of_a_dead_process_is_free_again_once_it_is_let_go() -> None:
    """Until then it is whole: a copy that is under way when its peer dies hits nothing."""
    num_bytes = 4 << 30  # far more than its context takes
    with peer_process("cuda:0", num_bytes) as there, new_writer("cuda:0", num_bytes) as ours:
        target = ours.transport.connect(there.address, ABI)
        op = ours.write(target, *[Descriptor(0, 0, num_bytes)] * 50)
        eventually(lambda: op.poll().written_bytes > 0, "it is under way")
        free_before, _ = torch.cuda.mem_get_info(0)
        there.kill()
        assert op.wait(WITHIN_S).state is OpState.FAILED
        eventually(
            lambda: torch.cuda.mem_get_info(0)[0] > free_before + 3 * num_bytes // 4, "its memory is free"
        )
        assert ours.memory.bytes_B[:MIB].eq(5).all(), "our own device works on"


def _on_the_last_gpu(rank: int, num_ranks: int) -> list[int]:
    """Has this process a context on each GPU, after a rank's threads have used the last one?"""
    index = NUM_GPUS - 1
    torch.cuda.set_device(index)
    with new_writer(f"cuda:{index}", MIB) as ours:
        event = torch.cuda.Event()
        event.record()
        asked: list[bool] = []

        def ask() -> None:
            ours.memory.enter_thread()
            asked.append(event.query())

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert asked
    library, active = ctypes.CDLL("libcuda.so.1"), []
    for device in range(NUM_GPUS):
        flags, state = ctypes.c_uint(), ctypes.c_int()
        assert library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state)) == 0
        active.append(state.value)
    return active


def test_a_rank_opens_a_context_on_its_own_gpu_only() -> None:
    [active] = run_to_the_end(_on_the_last_gpu, 1)
    assert active == [0] * (NUM_GPUS - 1) + [1]


def test_the_driver_names_what_it_refuses() -> None:
    with pytest.raises(Exception, match=r"cuDeviceGet: CUDA_ERROR_INVALID_DEVICE \(101\)"):
        CudaDriver(NUM_GPUS)
    assert CudaLibrary().status("cuInit", 0) == 0


def test_a_long_write_lands_whole(backend: str, peer: PeerProcess) -> None:
    """Thousands of pieces, some of which are always under way."""
    with new_writer(backend, WHOLE.num_bytes) as ours:
        target = ours.transport.connect(peer.address, ABI)
        op = ours.write(target, *[WHOLE] * 100)
        status = op.wait(WITHIN_S)
        assert (status.state, status.written_bytes) == (OpState.DONE, 100 * WHOLE.num_bytes)
        assert op.quiesced
        assert peer.ask("sum", 0, WHOLE.num_bytes) == 5 * WHOLE.num_bytes
