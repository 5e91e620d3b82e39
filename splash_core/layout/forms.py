"""How a layout runs a prefill step: choices that the policy makes and the engine obeys (docs/model.md §4)."""

from enum import StrEnum

from splash_core.layout.layout import KvHistory, LayoutRule, Matrix, Projection
from splash_core.spec.model import ModelSpec

_EXPANDED_WIDTHS = {(192, 128), (64, 64), (128, 128), (256, 256)}
"""(n + p, v) for which FlashInfer's Hopper prefill kernel is built."""

HOPPER = ("h100", "h200", "h20")
"""Devices, by their names in `spec.hardware`, that those kernels are for."""


class AttentionForm(StrEnum):
    """How prefill rows attend. Decode rows are always absorbed."""

    ABSORBED = "absorbed"
    EXPANDED = "expanded"


class CpStorage(StrEnum):
    """What crosses ranks in a step over striped histories: the queries, or the history."""

    PASS_Q = "pass_q"
    PASS_KV = "pass_kv"


class KernelLibrary(StrEnum):
    """What computes attention on a rank."""

    TORCH = "torch"
    FLASHINFER = "flashinfer"


def attention_library(spec: ModelSpec, *, dtype: str, gpu: str) -> KernelLibrary:
    """FlashInfer where it has kernels for the device, the element type and the model's head widths."""
    absorbed = (spec.kv_lora_rank, spec.rope_dim) == (512, 64)
    expanded = (spec.qk_dim, spec.v_dim) in _EXPANDED_WIDTHS
    serves = gpu in HOPPER and dtype in ("bf16", "fp16") and absorbed and expanded
    return KernelLibrary.FLASHINFER if serves else KernelLibrary.TORCH


def may_expand(rule: LayoutRule) -> bool:
    """True when the rank that holds a history also holds the KV-B heads that read it."""
    return rule.history is KvHistory.ALL or rule.projections[Matrix.KV_B] is Projection.REPLICATED
