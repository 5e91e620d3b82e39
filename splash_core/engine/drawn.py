"""Tokens that the step before drew, on the device: rows may begin with them before any host knows them.

The embedding is sharded over the vocabulary, so in every layout every rank needs every row's token, while
only its home has drawn it. Ranks gather them when a plan names them, and not before.

Legend: M rows that drew a token, of all ranks, home-major; M_j those at home here; N rows of a step.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.errors import InvariantBroken
from splash_core.ids import SeqId, StepId
from splash_core.scheduling.step import DrawnToken, StepPlan


class DrawnTokens:
    """What one step drew.

    Args:
        ctx: the rank.
        step: that drew.
        seqs: whose tokens, `[M]`.
        counts: how many of them each rank drew.
        mine_M: those of this rank, `[M_j]`.
    """

    def __init__(
        self, ctx: RankContext, step: StepId, seqs: Sequence[SeqId], counts: Sequence[int], mine_M: Tensor
    ) -> None:
        self._ctx = ctx
        self._step = step
        self._places = {seq: place for place, seq in enumerate(seqs)}
        self._counts = counts
        self._mine_M = mine_M
        self._tokens_M: Tensor | None = None

    @classmethod
    def none(cls, ctx: RankContext, step: StepId) -> "DrawnTokens":
        """A step that drew nothing."""
        return cls(ctx, step, (), [0] * ctx.num_ranks, torch.empty(0, dtype=torch.int64, device=ctx.device))

    @property
    def tokens_M(self) -> Tensor:
        """Of all ranks; gathered when first asked for, which all ranks do at the same place of a plan."""
        # No cached_property: until Python 3.12 its one lock would keep ranks that are threads from meeting.
        if self._tokens_M is None:
            gathered_M = self._ctx.comm.all_gather_rows(self._mine_M, self._counts, tag="tokens.gather")
            self._tokens_M = gathered_M
        return self._tokens_M

    def place(self, seq: SeqId) -> int:
        """Where a sequence's token is among the M."""
        return self._places[seq]

    def check(self, plan: StepPlan) -> None:
        """Return if all draws that the plan names are this step's.

        Raises:
            InvariantBroken: they do not; names the sequence.
        """
        for rows in plan.sequences:
            if isinstance(rows.tokens, DrawnToken) and not (
                rows.tokens.step == self._step and rows.seq in self._places
            ):
                raise InvariantBroken(
                    f"step {plan.step} begins sequence {rows.seq} with the token of step {rows.tokens.step}; "
                    f"the last step was {self._step}, which drew for {sorted(self._places)}"
                )

    def fill(self, batch: Batch, tokens_N: Tensor) -> None:
        """Put tokens in their places among a batch's token ids on the device."""
        rows_D = batch.drawn_N.nonzero()[0]
        if len(rows_D) == 0:
            return
        places_D = [self._places[batch.sequences[index].seq] for index in batch.sequence_N[rows_D]]
        rows, places = self._ctx.kernels.upload(np.asarray([rows_D, places_D], dtype=np.int64))
        tokens_N.index_copy_(0, rows, self.tokens_M.index_select(0, places))
