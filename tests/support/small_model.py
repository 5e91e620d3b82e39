"""The smallest MLA model with every part: one dense layer, one of grouped experts, q_lora, yarn."""

from pathlib import Path

from tests.conftest import TinyFactory


def small_checkpoint(tiny_checkpoint: TinyFactory) -> Path:
    """Two layers, 4 heads, odd widths: cheap enough for hundreds of runs."""
    return tiny_checkpoint(
        "v3",
        layers=2,
        heads=4,
        hidden=32,
        vocab=289,
        dense_intermediate=33,
        num_experts=4,
        num_groups=2,
        top_groups=1,
        moe_intermediate=16,
    )
