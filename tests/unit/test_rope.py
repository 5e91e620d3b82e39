import math
from pathlib import Path
from typing import Any

import pytest
import torch

from splash_core.errors import ConfigError
from splash_core.model.norm import rms_norm
from splash_core.model.rope import RotaryTable, softmax_scale
from splash_core.spec.catalogue import CATALOGUE
from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory

CPU = torch.device("cpu")
POSITIONS = torch.tensor([0, 1, 2, 63, 64, 65, 700, 2559])


@pytest.mark.parametrize(("name", "scale"), [("deepseek-v3", 0.135234), ("deepseek-v2-lite", 0.114721)])
def test_softmax_scale_of_published_models(name: str, scale: float) -> None:
    assert softmax_scale(CATALOGUE[name]) == pytest.approx(scale, abs=5e-7)


def test_softmax_scale_without_scaled_positions() -> None:
    spec = CATALOGUE["glm-4.7-flash"]
    assert softmax_scale(spec) == pytest.approx(1 / math.sqrt(256))


def rotary_rows(
    checkpoint: Path, dtype: torch.dtype, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """q `[N, H, p]` and k `[N, p]` as transformers rotates them."""
    import transformers
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    config: Any = transformers.AutoConfig.from_pretrained(checkpoint)
    q, k = q.transpose(0, 1)[None], k[None, None]
    if config.model_type == "deepseek_v2":
        angles = v2.DeepseekV2RotaryEmbedding(config)(q, position_ids=POSITIONS[None])
        q, k = v2.apply_rotary_emb(q, k, angles)
    else:
        angles = v3.DeepseekV3RotaryEmbedding(config)(q.to(dtype), position_ids=POSITIONS[None])
        rotate = v3.apply_rotary_pos_emb_interleave if config.rope_interleave else v3.apply_rotary_pos_emb
        q, k = rotate(q, k, *angles)
    return q[0].transpose(0, 1), k[0, 0]


@pytest.mark.parametrize("family", ["v2", "v3"])
@pytest.mark.parametrize("rope", ["yarn", "default", "longrope"])
def test_rotation_gives_the_reference_dot_products(
    tiny_checkpoint: TinyFactory, family: str, rope: str
) -> None:
    checkpoint = tiny_checkpoint(family, rope=rope)
    spec = ModelSpec.from_checkpoint(checkpoint)
    table = RotaryTable(spec, torch.float32, CPU)
    generator = torch.Generator().manual_seed(1)
    q_NHP = torch.randn(len(POSITIONS), 3, spec.rope_dim, generator=generator)
    k_NP = torch.randn(len(POSITIONS), spec.rope_dim, generator=generator)
    want_q, want_k = rotary_rows(checkpoint, torch.float32, q_NHP, k_NP)
    got_q, got_k = table.rotate(q_NHP, POSITIONS), table.rotate(k_NP, POSITIONS)
    want = torch.einsum("nhp,mp->nhm", want_q, want_k)
    got = torch.einsum("nhp,mp->nhm", got_q, got_k)
    assert (got - want).abs().max() < 1e-5
    if family == "v3":
        assert torch.equal(got_q, want_q)
        assert torch.equal(got_k, want_k)


def test_bf16_rotation_rounds_like_the_reference(tiny_v3: Path, tiny_v2: Path) -> None:
    for checkpoint in (tiny_v3, tiny_v2):
        spec = ModelSpec.from_checkpoint(checkpoint)
        q_NHP = torch.randn(
            len(POSITIONS), 2, spec.rope_dim, generator=torch.Generator().manual_seed(2)
        ).bfloat16()
        k_NP = q_NHP[:, 0]
        want, _ = rotary_rows(checkpoint, torch.bfloat16, q_NHP, k_NP)
        got = RotaryTable(spec, torch.bfloat16, CPU).rotate(q_NHP, POSITIONS)
        if checkpoint == tiny_v2:  # stays interleaved there
            want = torch.cat((want[..., 0::2], want[..., 1::2]), dim=-1)
        assert torch.equal(got, want)


def test_fp64_rotation_depends_on_distance_only(tiny_v3: Path) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    table = RotaryTable(spec, torch.float64, CPU)
    generator = torch.Generator().manual_seed(3)
    q_P, k_P = (torch.randn(1, spec.rope_dim, dtype=torch.float64, generator=generator) for _ in range(2))

    def dot(q_position: int, k_position: int) -> float:
        q = table.rotate(q_P, torch.tensor([q_position]))
        k = table.rotate(k_P, torch.tensor([k_position]))
        return float((q * k).sum())

    assert dot(40, 3) == pytest.approx(dot(2037, 2000), abs=1e-11)
    assert dot(40, 3) != pytest.approx(dot(41, 3), abs=1e-6)


def test_half_split_input_when_the_model_is_not_interleaved(tiny_v3: Path) -> None:
    import dataclasses

    spec = ModelSpec.from_checkpoint(tiny_v3)
    halves = dataclasses.replace(spec, rope=dataclasses.replace(spec.rope, interleaved=False))
    x_NP = torch.randn(len(POSITIONS), spec.rope_dim, generator=torch.Generator().manual_seed(4))
    pairs_NP = torch.stack(x_NP.chunk(2, dim=-1), dim=-1).flatten(1)
    got = RotaryTable(halves, torch.float32, CPU).rotate(x_NP, POSITIONS)
    assert torch.equal(got, RotaryTable(spec, torch.float32, CPU).rotate(pairs_NP, POSITIONS))


def test_table_length_is_limited_by_the_model(tiny_v3: Path) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    assert RotaryTable(spec, torch.float32, CPU, num_positions=100).num_positions == 100
    assert RotaryTable(spec, torch.float32, CPU).num_positions == spec.max_positions
    with pytest.raises(ConfigError, match="2561 positions exceed the 2560"):
        RotaryTable(spec, torch.float32, CPU, num_positions=2561)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_equals_the_reference(dtype: torch.dtype) -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

    generator = torch.Generator().manual_seed(5)
    x_ND = torch.randn(5, 48, generator=generator).to(dtype)
    norm = DeepseekV3RMSNorm(48, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(48, generator=generator))
    got = rms_norm(x_ND, norm.weight.detach(), 1e-5)
    assert got.dtype is dtype
    torch.testing.assert_close(
        got, norm(x_ND).detach(), rtol=1e-6 if dtype is torch.float32 else 8e-3, atol=0
    )


def test_rms_norm_stays_fp64() -> None:
    x_ND = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    want = x_ND / (x_ND.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert (rms_norm(x_ND, torch.ones(7, dtype=torch.float64), 1e-6) - want).abs().max() < 1e-14
