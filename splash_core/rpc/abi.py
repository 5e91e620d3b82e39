"""The KV ABI of a group: made from its model and settings, and its wire form."""

import dataclasses

from splash_core.pb import common_pb2
from splash_core.spec.model import ModelSpec
from splash_core.transport.abi import KvAbi

VERSION = "1"
"""Of the row layout `[c_kv | k_rope]`, page-major, all layers of a page together."""


def kv_abi(spec: ModelSpec, *, dtype: str, page_size: int, fingerprint: str, transport: str) -> KvAbi:
    """The ABI of a group that serves `spec`.

    Args:
        spec: the model.
        dtype: of KV rows: fp32, fp64 or bf16.
        page_size: tokens a page.
        fingerprint: of the checkpoint.
        transport: what its ranks speak.
    """
    return KvAbi(
        version=VERSION,
        dtype=dtype,
        page_size=page_size,
        layers=spec.num_mla_layers,
        latent_dim=spec.kv_lora_rank,
        rope_dim=spec.rope_dim,
        rope=repr(spec.rope),
        scale="",
        model=fingerprint,
        transport=transport,
        model_name=spec.name,
    )


def abi_to_pb(value: KvAbi) -> common_pb2.KvAbi:
    """An ABI for the wire."""
    return common_pb2.KvAbi(**dataclasses.asdict(value))


def abi_from_pb(message: common_pb2.KvAbi) -> KvAbi:
    """An ABI from the wire."""
    return KvAbi(**{field.name: getattr(message, field.name) for field in dataclasses.fields(KvAbi)})
