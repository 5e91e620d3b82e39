"""Which element type a computation runs in: at least fp32, and never below the model's own.

The reference casts norms, rope, router and sampling to fp32. Casting *up to* fp32 instead keeps fp64 models
fp64 throughout, so that layouts can be compared to 1e-12.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch

BY_NAME: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
)
"""Element types by the names that settings use."""


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, else fp32."""
    return torch.promote_types(dtype, torch.float32)
