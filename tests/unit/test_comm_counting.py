"""What the counting communicator calls received bytes."""

import torch

from services.bench.counting import CountingComm, Traffic
from splash_core.dist.comm import RankComms, Transfer
from splash_core.dist.inprocess import run_ranks
from splash_core.ids import RankId


def _program(comms: RankComms) -> dict[str, Traffic]:
    comm = CountingComm(comms.compute)
    counts = [1, 2, 0]
    x_NX = torch.zeros(counts[comm.rank], 4)
    comm.all_gather_rows(x_NX, counts, tag="tp.gather")
    comm.all_gather_rows(x_NX, counts, tag="tp.gather")
    comm.reduce_scatter_rows(torch.zeros(3, 4), counts, tag="tp.reduce")
    sends = [2 if peer == comm.rank else 1 for peer in range(3)]
    comm.all_to_all_rows(torch.zeros(4, 5, dtype=torch.float64), sends, sends, tag="dop.trade")
    next_rank, last_rank = RankId((comm.rank + 1) % 3), RankId((comm.rank - 1) % 3)
    kept, moved = torch.zeros(7, dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)
    comm.exchange(
        [Transfer(comm.rank, kept), Transfer(next_rank, moved)],
        [Transfer(comm.rank, kept.clone()), Transfer(last_rank, moved.clone())],
        tag="switch",
    )
    comm.barrier()
    assert comm.received_bytes() == sum(entry.received_bytes for entry in comm.traffic.values())
    traffic = comm.traffic
    comm.reset()
    assert comm.traffic == {}
    return traffic


def test_only_bytes_from_other_ranks_count() -> None:
    results = run_ranks(3, _program)
    row = 4 * 4
    for rank, traffic in enumerate(results):
        counts = [1, 2, 0]
        assert traffic["tp.gather"] == Traffic(2, 2 * (3 - counts[rank]) * row)
        assert traffic["tp.reduce"] == Traffic(1, 2 * counts[rank] * row)
        assert traffic["dop.trade"] == Traffic(1, 2 * 5 * 8)
        assert traffic["switch"] == Traffic(1, 5)


def test_a_single_rank_receives_nothing() -> None:
    def program(comms: RankComms) -> int:
        comm = CountingComm(comms.compute)
        comm.all_gather_rows(torch.zeros(3, 4), [3], tag="gather")
        comm.reduce_scatter_rows(torch.zeros(3, 4), [3], tag="reduce")
        return comm.received_bytes()

    assert run_ranks(1, program) == [0]
