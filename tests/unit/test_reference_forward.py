"""The model's parts put together on one rank, without arena, pages or collectives, against transformers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.layout.layout import Matrix
from splash_core.model.checkpoint import Checkpoint
from splash_core.model.embedding import embed_partial
from splash_core.model.logits import logits_partial
from splash_core.model.mlp import dense_ffn
from splash_core.model.moe import moe_ffn
from splash_core.model.norm import LATENT_EPS, rms_norm
from splash_core.model.rope import RotaryTable, softmax_scale
from splash_core.model.shards import LayerWeights, MoeShard
from splash_core.model.weights import load_shard, read_projection
from tests.oracle import hf_decode_logits, hf_logits

CPU = torch.device("cpu")
KERNELS = TorchKernels(CPU)
TOKENS = torch.randint(0, 320, (96,), generator=torch.Generator().manual_seed(7)).tolist()


def absorbed_attention(
    checkpoint: Checkpoint, index: int, layer: LayerWeights, x_ND: Tensor, table: RotaryTable
) -> Tensor:
    """Absorbed MLA of one sequence: W_UK folded into q, W_UV after the softmax."""
    spec, num = checkpoint.spec, x_ND.shape[0]
    q_b, kv_b, o = (
        read_projection(checkpoint, spec, index, matrix, 0, spec.heads).to(x_ND.dtype) for matrix in Matrix
    )
    down, q_in = layer.latent, x_ND
    q_a, kv = torch.nn.functional.linear(x_ND, down.weight, down.bias).tensor_split([-spec.kv_row], dim=-1)
    if down.q_norm is not None:
        q_in = rms_norm(q_a, down.q_norm, LATENT_EPS)
    q_NHD = (q_in @ q_b.t()).view(num, spec.heads, spec.qk_dim)
    latent, k_rope = kv.split((spec.kv_lora_rank, spec.rope_dim), dim=-1)
    positions = torch.arange(num)
    row = torch.cat((rms_norm(latent, down.kv_norm, LATENT_EPS), table.rotate(k_rope, positions)), dim=-1)
    q_nope, q_rope = q_NHD.split((spec.nope_dim, spec.rope_dim), dim=-1)
    w_uk, w_uv = kv_b.split((spec.nope_dim, spec.v_dim), dim=1)
    query = torch.cat((torch.einsum("thn,hnr->thr", q_nope, w_uk), table.rotate(q_rope, positions)), dim=-1)
    scores = torch.einsum("thr,sr->ths", query, row) * softmax_scale(spec)
    future = torch.ones(num, num, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future[:, None], float("-inf")).softmax(dim=-1)
    out = torch.einsum("ths,sr,hvr->thv", weights, row[:, : spec.kv_lora_rank], w_uv)
    projected = out.flatten(1) @ o
    return projected if layer.o_bias_D is None else projected + layer.o_bias_D


def forward(directory: Path, dtype: torch.dtype) -> Tensor:
    with Checkpoint.open(directory) as checkpoint:
        spec = checkpoint.spec
        weights = load_shard(checkpoint, spec, 0, 1, dtype, CPU)
        table = RotaryTable(spec, dtype, CPU)
        h_ND = embed_partial(torch.tensor(TOKENS), weights.embedding)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(h_ND, layer.input_norm_D, spec.rms_eps)
            h_ND = h_ND + absorbed_attention(checkpoint, index, layer, normed, table)
            normed = rms_norm(h_ND, layer.post_norm_D, spec.rms_eps)
            ffn = layer.ffn
            h_ND = h_ND + (
                moe_ffn(normed, ffn, spec, KERNELS) if isinstance(ffn, MoeShard) else dense_ffn(normed, ffn)
            )
        return logits_partial(rms_norm(h_ND, weights.final_norm_D, spec.rms_eps), weights.lm_head)


@pytest.mark.parametrize("name", ["tiny_v2", "tiny_v2_lite", "tiny_v3", "tiny_v3_dense"])
def test_logits_equal_the_reference(name: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(name)
    got = forward(directory, torch.float32)
    assert (got - hf_logits(directory, TOKENS)).abs().max() < 1e-5
    assert (got - hf_decode_logits(directory, TOKENS, 64)).abs().max() < 1e-5


def test_fp64_is_close_to_the_reference_in_fp64(tiny_v3: Path) -> None:
    """The reference keeps norms, rope and router in fp32, which leaves 1e-6 even there."""
    got = forward(tiny_v3, torch.float64)
    assert got.dtype is torch.float64
    assert (got - hf_logits(tiny_v3, TOKENS, torch.float64)).abs().max() < 1e-5


def test_wide_v2_lite_shape_equals_the_reference(wide_v2_lite: Path) -> None:
    got = forward(wide_v2_lite, torch.float32)
    assert (got - hf_logits(wide_v2_lite, TOKENS)).abs().max() < 1e-5
