"""The KV ABI: what two groups must agree on before a byte of KV crosses between them.

Invariant: equal ABIs mean that a page copied bit for bit has the same meaning on both sides.
"""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAbi:
    """Everything that gives a page's bytes their meaning; the fields of `common.proto`'s KvAbi."""

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


def abi_diff(ours: KvAbi, theirs: KvAbi, *, names: tuple[str, str] = ("ours", "theirs")) -> list[str]:
    """The fields that differ, each as `field: ours A, theirs B`; empty if pages may cross.

    Args:
        ours: one side.
        theirs: the other.
        names: what to call the two.
    """
    mine, other = asdict(ours), asdict(theirs)
    return [
        f"{name}: {names[0]} {mine[name]!r}, {names[1]} {other[name]!r}"
        for name in mine
        if mine[name] != other[name]
    ]
