"""How wide stored and exchanged numbers are: bytes per weight, per KV row, per activation.

Invariant: bytes follow what is *stored*, scales and second copies included (docs/model.md §2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from splash_core.errors import ConfigError
from splash_core.layout.layout import Matrix
from splash_core.layout.slots import matrix_elements
from splash_core.spec.model import ModelSpec

_FP8_BLOCK = 128 * 128
_FP8_ROW_BLOCK = 128
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Element types of one deployment."""

    name: str
    weight_bytes: float
    """Bytes stored per weight element."""
    kv_b_bytes: float
    """Bytes stored per element of KV-B: an FP8 model keeps the FP8 matrix, and a BF16 copy for absorption."""
    activation_bytes: int
    """Bytes per number that collectives carry."""
    kv_bytes: int
    """Bytes per number of the latent part of a KV row."""

    @property
    def quantised_kv(self) -> bool:
        """True when KV rows carry scales, and a rope part in BF16."""
        return self.kv_bytes == 1

    def matrix_bytes(self, spec: ModelSpec, matrix: Matrix) -> int:
        """Bytes of one layer's whole projection matrix."""
        width = self.kv_b_bytes if matrix is Matrix.KV_B else self.weight_bytes
        return round(matrix_elements(spec, matrix) * width)

    def projection_bytes(self, spec: ModelSpec) -> int:
        """w_P: bytes of one layer's three head-indexed projections."""
        return sum(self.matrix_bytes(spec, matrix) for matrix in Matrix)

    def read_bytes(self, spec: ModelSpec, matrix: Matrix) -> int:
        """Bytes of one layer's matrix that a step reads: of two copies of KV-B, the absorbed one."""
        stored = self.matrix_bytes(spec, matrix)
        if matrix is not Matrix.KV_B or self.kv_b_bytes == self.weight_bytes:
            return stored
        return round(stored * (self.kv_b_bytes - self.weight_bytes) / self.kv_b_bytes)

    def latent_row_bytes(self, spec: ModelSpec) -> int:
        """Bytes of one token's latent and rope row in one layer."""
        if not self.quantised_kv:
            return spec.kv_row * self.kv_bytes
        scales = -(-spec.kv_lora_rank // _FP8_ROW_BLOCK) * _SCALE_BYTES
        return spec.kv_lora_rank + scales + 2 * spec.rope_dim

    def index_row_bytes(self, spec: ModelSpec) -> int:
        """Bytes of one token's indexer key in one layer that has an indexer; 0 without one."""
        if spec.indexer is None:
            return 0
        if not self.quantised_kv:
            return spec.indexer.head_dim * self.kv_bytes
        return spec.indexer.head_dim + _SCALE_BYTES * -(-spec.indexer.head_dim // _FP8_ROW_BLOCK)

    def kv_token_bytes(self, spec: ModelSpec) -> int:
        """Bytes of one token's KV over all layers, indexer keys included."""
        indexed = 0 if spec.indexer is None else spec.indexer.layers
        return spec.num_mla_layers * self.latent_row_bytes(spec) + indexed * self.index_row_bytes(spec)


def _plain(name: str, width: int) -> Precision:
    return Precision(name=name, weight_bytes=width, kv_b_bytes=width, activation_bytes=width, kv_bytes=width)


_FP8_WEIGHT = 1 + _SCALE_BYTES / _FP8_BLOCK

PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp64": _plain("fp64", 8),
        "fp32": _plain("fp32", 4),
        "bf16": _plain("bf16", 2),
        "fp8": Precision(
            name="fp8",
            weight_bytes=_FP8_WEIGHT,
            kv_b_bytes=_FP8_WEIGHT + 2,
            activation_bytes=2,
            kv_bytes=1,
        ),
    }
)
"""Element types by name. `fp8`: FP8 weights with block scales, FP8 KV rows, BF16 activations."""


def named_precision(name: str) -> Precision:
    """The element types called `name`.

    Raises:
        ConfigError: the name is unknown; lists the known ones.
    """
    precision = PRECISIONS.get(name.lower())
    if precision is None:
        raise ConfigError(f"dtype {name!r} is not known; name one of {', '.join(PRECISIONS)}")
    return precision
