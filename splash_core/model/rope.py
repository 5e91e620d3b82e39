"""Rotary position embedding for the `p` rope dims of queries and of the shared key.

Invariant: q and k leave in the same order (half-split), so their dot products equal the reference's,
which keeps V2 interleaved and V3 half-split. Cached keys depend on their position only, never on the batch:
cos and sin are looked up in a table made once, not recomputed per step.

Legend: N rows, H heads, P = p/2 frequencies, S positions of the table.
"""

import math

import torch
from torch import Tensor

from splash_core.errors import ConfigError
from splash_core.kernels import rows
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.spec.model import Family, ModelSpec, RopeKind, RopeSpec


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Yarn's magnitude correction for a context stretched `factor` times."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def softmax_scale(spec: ModelSpec) -> float:
    """Multiplier of q·k before the softmax: `(n+p)^-0.5`, times mscale² where positions are scaled."""
    scale = spec.qk_dim**-0.5
    rope = spec.rope
    if rope.kind is not RopeKind.DEFAULT and rope.mscale_all_dim:
        scale *= yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    return scale


def attention_factor(rope: RopeSpec) -> float:
    """What cos and sin are multiplied with."""
    if rope.kind is RopeKind.DEFAULT:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind is RopeKind.LONGROPE:
        if rope.factor <= 1.0:
            return 1.0
        return math.sqrt(1.0 + math.log(rope.factor) / math.log(rope.original_max_positions))
    if rope.mscale and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor)


def _yarn_ramp(rope: RopeSpec, dim: int, dtype: torch.dtype) -> Tensor:
    """0 where a frequency is kept, 1 where it is divided by `factor`, linear between: `[P]`."""

    def dim_of_rotations(rotations: float) -> float:
        turns = rope.original_max_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dim_of_rotations(rope.beta_fast), dim_of_rotations(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(dim // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)


def inverse_frequencies(rope: RopeSpec, dim: int, dtype: torch.dtype) -> Tensor:
    """Radians per position of each of the `dim/2` pairs, `[P]`, with the reference's order of operations."""
    wavelength_P = rope.theta ** (torch.arange(0, dim, 2).to(dtype) / dim)
    if rope.kind is RopeKind.DEFAULT:
        return 1.0 / wavelength_P
    if rope.kind is RopeKind.LONGROPE:
        return 1.0 / (torch.tensor(rope.short_factor, dtype=dtype) * wavelength_P)
    keep_P = 1 - _yarn_ramp(rope, dim, dtype)
    return (1.0 / (rope.factor * wavelength_P)) * (1 - keep_P) + (1.0 / wavelength_P) * keep_P


class RotaryTable:
    """cos and sin of every position up to a limit.

    Args:
        spec: the model.
        dtype: the model's element type.
        device: where the table lives.
        num_positions: length of the table; default: the model's `max_positions`.
    """

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, *, num_positions: int | None = None
    ) -> None:
        work = at_least_fp32(dtype)
        length = spec.max_positions if num_positions is None else num_positions
        if length > spec.max_positions:
            raise ConfigError(
                f"{length} positions exceed the {spec.max_positions} of {spec.name}; lower --max-model-len"
            )
        inverse_P = inverse_frequencies(spec.rope, spec.rope_dim, work)
        angle_SP = torch.arange(length).to(work)[:, None] * inverse_P[None, :]
        factor = attention_factor(spec.rope)
        # The V2 reference rotates in fp32, V3 rotates in the model's dtype.
        stored = work if spec.family is Family.V2 else dtype
        self._cos_SP = (angle_SP.cos() * factor).to(device=device, dtype=stored)
        self._sin_SP = (angle_SP.sin() * factor).to(device=device, dtype=stored)
        self.interleaved = spec.rope.interleaved
        """Whether pairs come as neighbours (V2) or as two halves (V3); they leave as two halves."""

    @property
    def num_positions(self) -> int:
        """Positions 0 … num_positions-1 can be rotated."""
        return self._cos_SP.shape[0]

    def angles(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each row, `[N, P]` each: look up once per step, use in every layer."""
        return self._cos_SP[positions_N], self._sin_SP[positions_N]

    def apply(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate `[N, H, p]` or `[N, p]` by the rows' angles; the result is half-split, in x's dtype."""
        return rows.rotate(x, angles, interleaved=self.interleaved)

    def rotate(self, x: Tensor, positions_N: Tensor) -> Tensor:
        """Rotate `[N, H, p]` or `[N, p]` to positions `[N]`."""
        return self.apply(x, self.angles(positions_N))
