"""In-process ranks fail as a group, by name, and never hang."""

import threading
import time
from collections.abc import Iterable

import pytest
import torch

from splash_core.dist import inprocess
from splash_core.dist.comm import RankComms, Transfer
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.order import Order
from splash_core.errors import DeadlineExceeded, GroupFailed, InvariantBroken
from splash_core.ids import RankId


def test_results_come_in_rank_order() -> None:
    assert run_ranks(3, lambda comms: int(comms.compute.rank) * 10) == [0, 10, 20]


def test_the_first_failure_is_raised_with_its_rank_and_stops_the_others() -> None:
    reached = []

    def program(comms: RankComms) -> None:
        if comms.compute.rank == 1:
            raise KeyError("lost")
        comms.compute.barrier()
        reached.append(comms.compute.rank)

    with pytest.raises(KeyError, match="lost") as caught:
        run_ranks(3, program)
    assert caught.value.__notes__ == ["raised on rank 1 of 3"]
    assert reached == []


def test_a_rank_that_returns_early_is_named() -> None:
    def program(comms: RankComms) -> None:
        if comms.compute.rank != 1:
            comms.compute.barrier()

    with pytest.raises(GroupFailed, match=r"rank 1, which has returned|\[1\] have returned"):
        run_ranks(2, program)


def test_different_calls_are_reported_by_name() -> None:
    def program(comms: RankComms) -> None:
        if comms.compute.rank == 0:
            comms.compute.all_gather_rows(torch.zeros(1, 2), [1, 1], tag="left")
        else:
            comms.compute.all_gather_rows(torch.zeros(1, 2), [1, 1], tag="right")

    with pytest.raises(InvariantBroken, match=r"left.*right|right.*left"):
        run_ranks(2, program)


def test_an_exchange_that_does_not_match_is_refused() -> None:
    def program(comms: RankComms) -> None:
        peer = RankId(1 - comms.compute.rank)
        recv = Transfer(peer, torch.zeros(2 + comms.compute.rank))
        comms.compute.exchange([Transfer(peer, torch.zeros(3))], [recv], tag="pages")

    with pytest.raises(InvariantBroken, match="rank 1 sent 12 bytes, rank 0 expects 8"):
        run_ranks(2, program)


def test_a_stuck_rank_ends_the_run_at_its_deadline() -> None:
    released = threading.Event()

    def program(comms: RankComms) -> None:
        if comms.compute.rank == 1:
            released.wait(10)
        comms.compute.barrier()

    threading.Timer(1.0, released.set).start()
    with pytest.raises((DeadlineExceeded, GroupFailed)):
        run_ranks(2, program, timeout_s=0.3)


def test_both_communicators_work_at_once_from_two_threads() -> None:
    def program(comms: RankComms) -> tuple[float, float]:
        moved = torch.zeros(1000)

        def switch() -> None:
            peer = RankId(1 - comms.transfer.rank)
            for step in range(20):
                sent = torch.full((1000,), float(step + comms.transfer.rank))
                comms.transfer.exchange([Transfer(peer, sent)], [Transfer(peer, moved)], tag="switch")
                time.sleep(0.001 * comms.transfer.rank)

        background = threading.Thread(target=switch)
        background.start()
        total = torch.zeros(1)
        for _ in range(50):
            total += comms.compute.all_gather_rows(torch.ones(1), [1, 1], tag="step").sum()
        background.join()
        return total.item(), moved[0].item()

    assert run_ranks(2, program) == [(100.0, 20.0), (100.0, 19.0)]


def test_a_receive_may_land_in_an_inference_tensor() -> None:
    def program(comms: RankComms) -> float:
        with torch.inference_mode():
            target = torch.zeros(4)
        peer = RankId(1 - comms.compute.rank)
        comms.compute.exchange([Transfer(peer, torch.ones(4))], [Transfer(peer, target)], tag="pages")
        return target.sum().item()

    assert run_ranks(2, program) == [4.0, 4.0]


def test_every_peer_is_waited_for_before_what_it_shows_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As streams of a GPU need it; there the tensors that are read are named, too."""
    seen: dict[str, list[tuple[str, list[float]]]] = {}

    class Noted(Order):
        def mark(self) -> str:
            return threading.current_thread().name

        def after(self, mark: str, shown: Iterable[torch.Tensor] = ()) -> None:
            values = [tensor.sum().item() for tensor in shown]
            seen.setdefault(threading.current_thread().name, []).append((mark, values))

    def program(comms: RankComms) -> None:
        rank, peer = comms.compute.rank, RankId(1 - comms.compute.rank)
        own = torch.full((2,), 10.0 + rank)
        comms.compute.all_gather_rows(own, [2, 2], tag="gather")
        comms.compute.all_to_all_rows(own, [1, 1], [1, 1], tag="home")
        comms.compute.reduce_scatter_rows(own, [1, 1], tag="sum")
        comms.transfer.exchange([Transfer(peer, own)], [Transfer(peer, torch.zeros(2))], tag="pages")
        comms.compute.barrier()

    monkeypatch.setattr(inprocess, "order_on", lambda device: Noted())
    run_ranks(2, program)
    for rank, peer in ((0, 1), (1, 0)):
        value = 10.0 + peer
        shown = [[2 * value], [value, value], [2 * value], [2 * value], []]
        assert seen[f"rank-{rank}"] == [(f"rank-{peer}", values) for values in shown]
