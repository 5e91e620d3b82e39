"""Counter-based noise for sampling: a pure function of (seed, position, token id).

Invariant: a draw does not depend on batch, layout, rank, device or on what was drawn before, because there
is no generator state; the same (seed, position) always sees the same noise.
"""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The 64-bit pattern as torch's int64 reads it."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """splitmix64's finaliser on one 64-bit integer."""
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK
    return value ^ (value >> 31)


def row_key(seed: int, position: int) -> int:
    """One 64-bit key per (seed, position), in int64 range."""
    return _signed(_mix(_mix((seed + _GOLDEN) & _MASK) ^ ((position + 1) * _GOLDEN & _MASK)))


def _xor_shift_(z: Tensor, bits: int) -> None:
    """`z ^= z >> bits` with a logical shift, which torch lacks for int64."""
    z ^= (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def uniform(key: int | Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """A number in (0, 1) for each token id (int64), with full relative precision near 0.

    Args:
        key: of `row_key`; int64 `[N, 1]` for N rows at once.
        tokens: their ids.
        dtype: of the result.
    """
    z = tokens * _signed(_GOLDEN) + key
    _xor_shift_(z, 30)
    z.mul_(_signed(_MIX1))
    _xor_shift_(z, 27)
    z.mul_(_signed(_MIX2))
    _xor_shift_(z, 31)
    z.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1)
    w = z.to(dtype).add_(0.5).mul_(2.0**-53)
    # Rounding may reach 1, whose logarithm below would be infinite.
    return w.clamp_(max=1.0 - torch.finfo(dtype).eps / 2)


def gumbel(key: int | Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Gumbel noise: argmax of (logits + noise) draws from softmax(logits)."""
    # -log1p(-w) is exponential; small values (the large noise that wins) keep their relative precision.
    return uniform(key, tokens, dtype).neg_().log1p_().neg_().log_().neg_()
