"""Sending home rows to other ranks by a per-step table, and returning what they answer.

All counts follow from the batch, which every rank knows, so no counts are exchanged.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splash_core.attention.batch import Batch, IntArray
from splash_core.attention.context import RankContext

BoolArray = NDArray[np.bool_]


class RowRoute:
    """Copies of home rows for a set of destination ranks each.

    Args:
        ctx: the rank.
        batch: the step.
        wanted_NT: `[N, T]`, True where a rank wants a copy of a row.
    """

    def __init__(self, ctx: RankContext, batch: Batch, wanted_NT: BoolArray) -> None:
        self._comm = ctx.comm
        rank, ranks = ctx.rank, ctx.num_ranks
        home_NT = wanted_NT[batch.home]
        self.send_counts = [int(home_NT[:, peer].sum()) for peer in range(ranks)]
        self.recv_counts = [int(wanted_NT[batch.rows_of(peer), rank].sum()) for peer in range(ranks)]
        self.received_N: IntArray = wanted_NT[:, rank].nonzero()[0]
        """Batch rows that this rank receives, in order of arrival."""
        self._send_rows_N = ctx.kernels.upload(home_NT.T.nonzero()[1])
        """Home rows for rank 0 first, then rank 1, …"""
        self._send_peers_N = ctx.kernels.upload(home_NT.T.nonzero()[0])
        self._home_rows = batch.counts[rank]
        self._crosses = bool(
            wanted_NT.sum() > sum(wanted_NT[batch.rows_of(j), j].sum() for j in range(ranks))
        )

    def send(self, rows_NX: Tensor, *, tag: str) -> Tensor:
        """Home rows `[N_j, …]` → the rows wanted here, `[len(received_N), …]`."""
        outgoing = rows_NX[self._send_rows_N]
        if not self._crosses:
            return outgoing
        return self._comm.all_to_all_rows(outgoing, self.send_counts, self.recv_counts, tag=tag)

    def give_back(self, answers_NX: Tensor, *, tag: str) -> Tensor:
        """Answers in the order of `received_N` → answers to the home rows, in send order."""
        if not self._crosses:
            return answers_NX
        return self._comm.all_to_all_rows(answers_NX, self.recv_counts, self.send_counts, tag=tag)

    def by_peer(self, answers_NX: Tensor, fill: float) -> Tensor:
        """Answers in send order → `[T, N_j, …]`, `fill` where a rank was not asked."""
        shape = (self._comm.size, self._home_rows, *answers_NX.shape[1:])
        dense = torch.full(shape, fill, dtype=answers_NX.dtype, device=answers_NX.device)
        dense[self._send_peers_N, self._send_rows_N] = answers_NX
        return dense
