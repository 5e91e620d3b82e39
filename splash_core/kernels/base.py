"""What the engine asks of a kernel library; one per device kind (`engine/backends.py` chooses).

Nothing here waits for the device or makes a shape from device data, so that calls may be captured in CUDA
graphs. Counts and indices come from the host, by `upload`.

Legend: S slots, P page size, C = r + p (one latent row), M pages, N rows, T parts, H heads, v width of a
head's value, D hidden, I width of an FFN, E_j experts of this rank, K experts per row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

A = TypeVar("A")
B = TypeVar("B")
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlaces:
    """Where rows go in a rank's pages: made by `Kernels.write_places`, used in every layer."""

    slots_N: Tensor
    offsets_N: Tensor
    rows_N: Tensor | None
    """Which of the given rows these places are for; None: all of them, those without a slot are skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts that a rank holds: `first … first + E_j - 1` of the layer."""

    first: int
    num_in_layer: int
    """On all ranks."""
    gate_up_EXD: Tensor
    """`[E_j, 2·I, D]`, gate rows above up rows."""
    down_EDI: Tensor
    """`[E_j, D, I]`."""


class Kernels(Protocol):
    """One device's kernels."""

    def upload(self, values: NDArray[Any]) -> Tensor:
        """Indices or masks of a step, made on the host, as a tensor on the compute device."""
        ...

    def write_places(self, slots_N: IntArray, offsets_N: IntArray) -> WritePlaces:
        """Places of N rows: slot and offset in the page; a row whose slot is `NO_SLOT` is not written."""
        ...

    def append_rows(self, pages_SPC: Tensor, rows_NC: Tensor, places: WritePlaces) -> None:
        """Write KV rows into one layer's pages (a strided view). No two rows have the same place."""
        ...

    def gather_pages(self, pages: Tensor, slots_M: Tensor, out: Tensor | None = None) -> Tensor:
        """`[M, …]`, contiguous: pages `[S, …]` (the arena, or one layer of it) in the order of `slots_M`.

        `out`, if given, receives them; it is contiguous.
        """
        ...

    def scatter_pages(self, pages: Tensor, slots_M: Tensor, values: Tensor) -> None:
        """`pages[slots_M] = values`; `values` is contiguous `[M, …]`, no slot appears twice."""
        ...

    def merge_by_lse(self, out_TNHv: Tensor, lse_TNH: Tensor) -> Tensor:
        """Merge partial attention outputs over disjoint keys.

        `lse` is a natural logarithm in at least fp32. Where a part saw no key it is -inf, and the part's
        output is 0; so is the merged output of a row that no part saw.
        """
        ...

    def side_by_side(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """Compute two things of which neither needs the other, at once where that is faster."""
        ...

    def moe_experts(
        self, out_ND: Tensor, x_ND: Tensor, ids_NK: Tensor, weights_NK: Tensor, experts: Experts
    ) -> None:
        """Add the weighted outputs of this rank's experts to `out_ND`, in place.

        Args:
            out_ND: what they are added to.
            x_ND: the layer's normalised rows.
            ids_NK: each row's experts, of all ranks, by their number in the layer.
            weights_NK: their weights, in at least fp32.
            experts: this rank's.
        """
        ...
