"""The KV ABI: what two groups must agree on before a byte of KV crosses between them.

Invariant: equal ABIs mean that a page copied bit for bit has the same meaning on both sides.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAbi:
    """What gives a page's bytes their meaning, and what carries them: `common.proto`'s KvAbi."""

    version: str
    dtype: str
    page_size: int
    """Tokens of a page."""
    layers: int
    latent_dim: int
    rope_dim: int
    rope: str
    """Rotary parameters, printed."""
    scale: str
    """Scales stored beside quantised rows; empty if none."""
    model: str
    """Fingerprint of the checkpoint: KV of other weights means something else, however alike the shapes."""
    transport: str = ""
    """Transport, protocol and version that its ranks speak, such as `mooncake tcp 1`."""
    model_name: str = ""
    """What people call it: for messages, not compared, as copies may lie in folders of other names."""


def abi_diff(ours: KvAbi, theirs: KvAbi, *, names: tuple[str, str] = ("ours", "theirs")) -> list[str]:
    """The fields that differ, each as `field: ours A, theirs B`; empty if pages may cross.

    Args:
        ours: one side.
        theirs: the other.
        names: what to call the two.
    """
    return [
        f"{field.name}: {names[0]} {_shown(ours, field.name)}, {names[1]} {_shown(theirs, field.name)}"
        for field in fields(KvAbi)
        if field.name != "model_name" and getattr(ours, field.name) != getattr(theirs, field.name)
    ]


def _shown(abi: KvAbi, name: str) -> str:
    label = f" ({abi.model_name})" if name == "model" and abi.model_name else ""
    return f"{getattr(abi, name)!r}{label}"
