"""The re-expression of GQA as MLA is exact, on a small random Llama (the real weights: tests/e2e)."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from splash_core.checkpoints.gqa_as_mla import GqaShape, convert
from splash_core.checkpoints.smollm2 import mla_config, shape_of


def tiny_llama(query_heads: int, kv_heads: int) -> transformers.LlamaForCausalLM:
    """A random model with SmolLM2's proportions."""
    torch.manual_seed(query_heads)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=36,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(9, 3), (4, 4), (6, 1)])
def test_converted_model_computes_the_same_logits(tmp_path: Path, query_heads: int, kv_heads: int) -> None:
    source = tiny_llama(query_heads, kv_heads)
    shape = shape_of(source.config)
    tensors = {name: tensor.contiguous() for name, tensor in convert(source.state_dict(), shape)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(mla_config(source.config, shape)))
    converted = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()

    ids_BN = torch.randint(0, 64, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted_BNV, got_BNV = source(ids_BN).logits, converted(ids_BN).logits
    assert got_BNV.shape == wanted_BNV.shape
    torch.testing.assert_close(got_BNV, wanted_BNV, rtol=0, atol=1e-5)


def test_longrope_factors_give_every_pair_its_frequency_inside_one_head() -> None:
    shape = GqaShape(
        layers=1,
        hidden=1,
        query_heads=2,
        kv_heads=2,
        head_dim=4,
        rope_theta=100.0,
        heads=2,
        latent=16,
        nope=1,
    )
    factors = shape.longrope_factors()
    frequencies = [100.0 ** (-2 * pair / 8) / factor for pair, factor in enumerate(factors)]
    assert frequencies == pytest.approx([1.0, 0.1, 1.0, 0.1])
