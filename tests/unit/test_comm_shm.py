"""What is special to shared-memory collectives: chunks, and ends without hanging."""

import os
import threading
import time
from itertools import pairwise

import pytest
import torch

from splash_core.dist.comm import Transfer
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.shm import ShmComm
from splash_core.dist.shm_segment import CHUNK_BYTES, Segment, SegmentMap, create_segment
from splash_core.errors import ConfigError, GroupFailed, InvariantBroken
from splash_core.ids import RankId
from tests.support.shm_threads import run_on_shm


def _pair(timeout_s: float) -> list[ShmComm]:
    fd = create_segment(2)
    pids = [os.getpid()] * 2
    comms = [
        ShmComm(Segment(fd, 2), RankId(rank), pids=pids, timeout_s=timeout_s, spins=0) for rank in range(2)
    ]
    os.close(fd)
    return comms


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_no_two_words_or_buffers_of_a_segment_overlap(num_ranks: int) -> None:
    segment = SegmentMap.build(num_ranks)
    channels = [*segment.broadcast, *(channel for row in segment.pairs for channel in row)]
    lines = [*segment.doorbells, *segment.asleep, *segment.closed]
    for channel in channels:
        lines += [channel.head, *channel.acks]
    assert len({word // 8 for word in lines}) == len(lines)
    starts = sorted(channel.buffers for channel in channels)
    assert max(lines) * 8 + 64 <= starts[0]
    assert all(b - a >= 2 * CHUNK_BYTES for a, b in pairwise(starts))
    assert starts[-1] + 2 * CHUNK_BYTES <= segment.total_bytes


@pytest.mark.parametrize("extra", [-1, 0, 1, 2 * CHUNK_BYTES + 3])
def test_messages_of_any_length_around_a_chunk_arrive_whole(extra: int) -> None:
    length = 3 * CHUNK_BYTES + extra

    def program(comm: ShmComm) -> None:
        base = torch.arange(length, dtype=torch.int64) % 251
        mine_B = (base + comm.rank).to(torch.uint8)
        gathered_B = comm.all_gather_rows(mine_B, [length] * comm.size, tag="gather")
        for peer in range(comm.size):
            want_B = (base + peer).to(torch.uint8)
            assert torch.equal(gathered_B[peer * length : (peer + 1) * length], want_B)
        peer = RankId((comm.rank + 1) % comm.size)
        source = RankId((comm.rank - 1) % comm.size)
        landed_B = torch.zeros(length, dtype=torch.uint8)
        parts = [0, 1, CHUNK_BYTES - 1, 2 * CHUNK_BYTES, length]
        cuts = [slice(a, b) for a, b in pairwise(parts)]
        comm.exchange(
            [Transfer(peer, mine_B[cut]) for cut in cuts],
            [Transfer(source, landed_B[cut]) for cut in cuts],
            tag="pages",
        )
        assert torch.equal(landed_B, (base + source).to(torch.uint8))

    run_on_shm(3, program)


def test_a_rank_that_ends_is_named_at_once() -> None:
    def program(comm: ShmComm) -> None:
        if comm.rank == 0:
            comm.barrier()

    began = time.monotonic()
    with pytest.raises(GroupFailed, match=r"waits in barrier for ranks \[1\], which have ended"):
        run_on_shm(2, program, timeout_s=30)
    assert time.monotonic() - began < 15


def test_what_a_rank_sent_before_it_ended_still_arrives() -> None:
    def program(comm: ShmComm) -> list[float]:
        if comm.rank == 0:
            time.sleep(0.2)
        return comm.all_gather_rows(torch.tensor([float(comm.rank)]), [1, 1], tag="last").tolist()

    assert run_on_shm(2, program) == [[0, 1], [0, 1]]


def test_a_late_rank_is_named_after_the_deadline() -> None:
    comms = _pair(0.2)
    with pytest.raises(GroupFailed, match=r"rank 0 waited 0.2 s in step for ranks \[1\]"):
        comms[0].all_gather_rows(torch.zeros(1), [1, 1], tag="step")


def test_different_collectives_are_reported() -> None:
    def program(comm: ShmComm) -> None:
        comm.all_gather_rows(torch.zeros(1), [1, 1], tag=f"call-{comm.rank}")

    with pytest.raises(InvariantBroken, match="in another collective"):
        run_on_shm(2, program)


def test_different_sizes_are_reported() -> None:
    def program(comm: ShmComm) -> None:
        counts = [1, 1] if comm.rank == 0 else [2, 1]
        comm.all_gather_rows(torch.zeros(1), counts, tag="gather")

    with pytest.raises(InvariantBroken, match="expects 8 bytes, rank 0 sent 4"):
        run_on_shm(2, program)


def test_closing_ends_a_call_of_another_thread() -> None:
    comm = _pair(30)[0]
    raised: list[BaseException] = []

    def wait_for_nobody() -> None:
        try:
            comm.barrier()
        except InvariantBroken as error:
            raised.append(error)

    thread = threading.Thread(target=wait_for_nobody)
    thread.start()
    time.sleep(0.1)
    comm.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed" in str(raised[0])
    with pytest.raises(InvariantBroken, match="closed"):
        comm.all_gather_rows(torch.zeros(1), [1, 1], tag="late")
    comm.close()


def test_two_threads_inside_one_communicator_are_refused() -> None:
    comms = _pair(30)
    thread = threading.Thread(target=comms[0].barrier)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(InvariantBroken, match="another thread"):
        comms[0].barrier()
    comms[1].barrier()
    thread.join(10)
    assert not thread.is_alive()


def test_a_segment_of_another_size_is_refused() -> None:
    fd = create_segment(2)
    with pytest.raises(ConfigError, match="same number of ranks"):
        Segment(fd, 3)
    os.close(fd)


def test_spinning_and_sleeping_waiters_agree() -> None:
    def program(comm: ShmComm) -> float:
        total = 0.0
        for step in range(200):
            x_N = torch.full((1,), float(step + comm.rank))
            total += comm.all_gather_rows(x_N, [1, 1], tag="step").sum().item()
        return total

    want = [float(sum(2 * step + 1 for step in range(200)))] * 2
    assert run_on_shm(2, program, spins=0) == want
    assert run_on_shm(2, program, spins=50) == want


def test_both_communicators_of_a_rank_are_independent() -> None:
    pairs = [_pair(10), _pair(10)]

    def program(rank: int) -> tuple[float, float]:
        compute, transfer = pairs[0][rank], pairs[1][rank]
        landed = torch.zeros(CHUNK_BYTES)
        peer = RankId(1 - rank)

        def switch() -> None:
            for step in range(5):
                sent = torch.full((CHUNK_BYTES,), float(step + rank))
                transfer.exchange([Transfer(peer, sent)], [Transfer(peer, landed)], tag="switch")

        background = threading.Thread(target=switch)
        background.start()
        total = sum(compute.all_gather_rows(torch.ones(1), [1, 1], tag="step").sum() for _ in range(50))
        background.join()
        return float(total), landed[-1].item()

    assert run_ranks(2, lambda comms: program(comms.compute.rank)) == [(100.0, 5.0), (100.0, 4.0)]
