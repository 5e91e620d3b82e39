"""Fixtures shared by all tests: tiny random checkpoints, each written once per session.

Property tests run the same examples every time; a failing one found elsewhere is added as an explicit test.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

TinyFactory = Callable[..., Path]
"""`tiny_checkpoint("v3", layers=2, …)` → directory; the same arguments give the same directory."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyFactory:
    """Write (once) a random checkpoint with the given family, seed and dimensions."""
    written: dict[str, Path] = {}

    def factory(family: str = "v3", *, seed: int = 0, **options: Any) -> Path:
        # Imported here: tests of the router and the planner run without torch.
        from splash_core.checkpoints.tiny import write_tiny

        key = f"{family} {seed} {sorted(options.items())}"
        if key not in written:
            out = tmp_path_factory.mktemp(f"tiny-{family}-")
            written[key] = write_tiny(out, family=family, seed=seed, **options)
        return written[key]

    return factory


@pytest.fixture(scope="session")
def tiny_v2(tiny_checkpoint: TinyFactory) -> Path:
    """V2: yarn, q_lora, experts limited to groups."""
    return tiny_checkpoint("v2")


@pytest.fixture(scope="session")
def tiny_v2_lite(tiny_checkpoint: TinyFactory) -> Path:
    """V2-Lite's form: no q_lora, greedy routing, two shared experts."""
    return tiny_checkpoint("v2", q_lora_rank=None, num_groups=1, top_groups=1, num_shared=2)


@pytest.fixture(scope="session")
def tiny_v3(tiny_checkpoint: TinyFactory) -> Path:
    """V3: yarn, q_lora, experts limited to groups."""
    return tiny_checkpoint("v3")


@pytest.fixture(scope="session")
def bare(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder without weights: what `--load-format dummy` needs."""
    folder = tmp_path_factory.mktemp("bare") / "tiny-v3"
    return Path(shutil.copytree(tiny_v3, folder, ignore=shutil.ignore_patterns("*.safetensors*")))


@pytest.fixture(scope="session")
def tiny_v3_dense(tiny_checkpoint: TinyFactory) -> Path:
    """The demo model's form: dense V3 with longrope, biases, tied embeddings and no q_lora."""
    return tiny_checkpoint(
        "v3", q_lora_rank=None, rope="longrope", attention_bias=True, tie_embeddings=True, num_experts=0
    )


@pytest.fixture(scope="session")
def wide_v2_lite(tiny_checkpoint: TinyFactory) -> Path:
    """All attention and FFN widths of DeepSeek-V2-Lite; 3 layers, 8 experts, vocabulary 1,024. 0.7 GB."""
    import torch

    return tiny_checkpoint(
        "v2",
        q_lora_rank=None,
        layers=3,
        hidden=2048,
        heads=16,
        kv_lora_rank=512,
        nope_dim=128,
        rope_dim=64,
        v_dim=128,
        vocab=1024,
        dense_intermediate=10944,
        num_experts=8,
        top_k=6,
        num_groups=1,
        top_groups=1,
        num_shared=2,
        moe_intermediate=1408,
        dtype=torch.bfloat16,
    )
