"""The one interface of all layouts."""

from abc import ABC, abstractmethod

from torch import Tensor

from splash_core.attention.batch import Batch
from splash_core.attention.context import Angles, RankContext


class LayoutAttention(ABC):
    """Attention of one step in one layout.

    Made once per step: the constructor turns the batch into indices and counts, `forward` is called for
    each layer. A layout gets the normalised hidden rows at home on this rank and returns the attention
    block's output for the same rows; everything that crosses ranks in between is its own business.
    """

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        self.ctx = ctx
        self.batch = batch
        self.angles: Angles = ctx.rotary.angles(batch.positions_N)
        """Of all rows."""
        cos, sin = self.angles
        self.home_angles: Angles = cos[batch.home], sin[batch.home]

    @abstractmethod
    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """`[N_j, d]` normalised home rows → `[N_j, d]` attention output, bias included."""
