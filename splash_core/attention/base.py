"""The one interface of all layouts."""

from abc import ABC, abstractmethod

from torch import Tensor

from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.kernels.rows import Angles


class LayoutAttention(ABC):
    """Attention of one step in one layout.

    Made once per step. The constructor works on the host: it turns the batch into counts, and
    into indices on the device.
    `begin` and then `forward`, for each layer, work on the device; they may be part of a CUDA graph that is
    replayed with another step's indices in the same places.

    A layout gets the normalised hidden rows at home on this rank and returns the attention block's output
    for the same rows; everything that crosses ranks in between is its own business.
    """

    def __init__(self, ctx: RankContext, batch: Batch) -> None:
        self.ctx = ctx
        self.batch = batch
        self.tokens_N = ctx.kernels.upload(batch.token_N)
        """Token ids of all rows."""
        self.positions_N = ctx.kernels.upload(batch.position_N)
        self.angles: Angles
        """Of all rows; from `begin` on."""
        self.home_angles: Angles

    def begin(self) -> None:
        """Look up what all layers share; called once, before the first layer."""
        cos, sin = self.angles = self.ctx.rotary.angles(self.positions_N)
        self.home_angles = cos[self.batch.home], sin[self.batch.home]

    @classmethod
    @abstractmethod
    def attends(cls, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
        """Query rows and heads with which a rank attends in a padded batch of `rows_per_rank` home rows."""

    @abstractmethod
    def forward(self, layer: int, x_ND: Tensor) -> Tensor:
        """`[N_j, d]` normalised home rows → `[N_j, d]` attention output, bias included."""
