"""The seam between layouts and attention libraries.

A layout says which of the step's rows it attends with, and over which keys; a backend turns that into its
library's plan once per step, and is then called in each layer. `latent` and `values` neither wait for the
device nor shape anything by device data.

A row without keys (padding, or a stripe that holds none of its history) gives output 0 and lse -inf.

Legend: N query rows, H heads, C = r + p, r latent rank, D = n + p, v width of a value, K staged keys.
"""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from splash_core.attention.batch import Batch
from splash_core.kernels.base import IntArray
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import Projection

if TYPE_CHECKING:
    from splash_core.attention.context import RankContext

StagedRows = dict[int, tuple[IntArray, IntArray]]
"""Of each sequence (by its index in the batch): rows of the staging tensor and their positions, ascending."""


class PreparedAttention(Protocol):
    """One step's attention of one rank."""

    def latent(self, ctx: "RankContext", layer: int, q_NHC: Tensor) -> tuple[Tensor, Tensor]:
        """Absorbed attention over this rank's pages.

        Returns:
            out_NHr, and lse_NH (natural logarithm) in at least fp32.
        """
        ...

    def values(
        self,
        ctx: "RankContext",
        layer: int,
        q_NHD: Tensor,
        *,
        kind: Projection,
        form: AttentionForm,
        staging_KC: Tensor | None = None,
    ) -> Tensor:
        """Attention and W_UV where a rank holds both the keys and the KV-B of the query's heads.

        Chunks take the form that the plan names; decode rows are always absorbed.

        Args:
            ctx: the rank.
            layer: layer index.
            q_NHD: queries of the view's heads.
            kind: which view of the projections.
            form: for chunks.
            staging_KC: keys gathered for this layer, when the step was prepared by `staged`.

        Returns:
            out_NHv.
        """
        ...


class AttentionBackend(Protocol):
    """An attention library."""

    def paged(self, batch: Batch, rows_N: IntArray) -> PreparedAttention:
        """Over the pages on this rank; `rows_N`: the rank's query rows (numbers in the batch), in order."""
        ...

    def staged(self, batch: Batch, rows_N: IntArray, keys: StagedRows) -> PreparedAttention:
        """Over rows that are gathered for each layer (CP pass-KV)."""
        ...
