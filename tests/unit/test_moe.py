from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.model.checkpoint import Checkpoint
from splash_core.model.mlp import dense_ffn
from splash_core.model.moe import moe_ffn, route
from splash_core.model.random_weights import RandomReader
from splash_core.model.shards import DenseShard, MoeShard
from splash_core.model.weights import load_shard
from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory
from tests.oracle import hf_model

CPU = torch.device("cpu")
KERNELS = TorchKernels(CPU)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "v2-greedy": ("v2", {"num_groups": 1, "top_groups": 1, "num_shared": 2, "top_k": 3}),
    "v2-groups": ("v2", {"top_k": 3}),
    "v3-groups": ("v3", {"top_k": 3}),
    "v3-one-group": ("v3", {"num_groups": 1, "top_groups": 1}),
}


@pytest.fixture(params=CASES, scope="module")
def checkpoint(request: pytest.FixtureRequest, tiny_checkpoint: TinyFactory) -> Path:
    family, options = CASES[request.param]
    return tiny_checkpoint(family, layers=2, num_experts=12, **options)


def shards(checkpoint: Path, num_ranks: int, dtype: torch.dtype, layer: int) -> list[DenseShard | MoeShard]:
    with Checkpoint.open(checkpoint) as opened:
        return [
            load_shard(opened, opened.spec, rank, num_ranks, dtype, CPU).layers[layer].ffn
            for rank in range(num_ranks)
        ]


def moe_shards(checkpoint: Path, num_ranks: int, dtype: torch.dtype) -> list[MoeShard]:
    found = shards(checkpoint, num_ranks, dtype, 1)
    assert all(isinstance(shard, MoeShard) for shard in found)
    return [shard for shard in found if isinstance(shard, MoeShard)]


def rows(num: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(num, width, dtype=torch.float64, generator=torch.Generator().manual_seed(num)).to(
        dtype
    )


def test_routing_equals_the_reference(checkpoint: Path) -> None:
    spec = ModelSpec.from_checkpoint(checkpoint)
    (shard,) = shards(checkpoint, 1, torch.float32, 1)
    assert isinstance(shard, MoeShard)
    x_ND = rows(200, spec.hidden)
    ids, weights = route(x_ND, shard, spec)
    _, want_weights, want_ids = hf_model(checkpoint).model.layers[1].mlp.gate(x_ND)
    dense = torch.zeros(200, 12).scatter_(1, ids, weights)
    want = torch.zeros(200, 12).scatter_(1, want_ids, want_weights.detach())
    assert torch.equal(dense > 0, want > 0)
    assert (dense - want).abs().max() < 1e-6


@pytest.mark.parametrize("num_rows", [0, 1, 3, 64])
@pytest.mark.parametrize("num_ranks", [1, 2, 5, 16])
def test_sum_over_ranks_equals_the_reference(checkpoint: Path, num_ranks: int, num_rows: int) -> None:
    """16 ranks for 12 experts: some ranks have none, and a shared column or two at most."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    x_ND = rows(num_rows, spec.hidden)
    parts = [
        moe_ffn(x_ND, shard, spec, KERNELS) for shard in moe_shards(checkpoint, num_ranks, torch.float32)
    ]
    got = torch.stack(parts).sum(dim=0)
    assert got.shape == (num_rows, spec.hidden)
    if num_rows:
        want = hf_model(checkpoint).model.layers[1].mlp(x_ND[None])[0].detach()
        assert (got - want).abs().max() < 1e-5


def test_fp64_does_not_depend_on_the_number_of_ranks(checkpoint: Path) -> None:
    spec = ModelSpec.from_checkpoint(checkpoint)
    x_ND = rows(40, spec.hidden, torch.float64)
    outputs = [
        torch.stack(
            [
                moe_ffn(x_ND, shard, spec, KERNELS)
                for shard in moe_shards(checkpoint, num_ranks, torch.float64)
            ]
        ).sum(0)
        for num_ranks in (1, 3, 4)
    ]
    assert outputs[0].dtype is torch.float64
    assert (outputs[1] - outputs[0]).abs().max() < 1e-13
    assert (outputs[2] - outputs[0]).abs().max() < 1e-13


@pytest.mark.parametrize("num_ranks", [1, 2, 7])
def test_dense_ffn_sums_to_the_reference(tiny_v3: Path, num_ranks: int) -> None:
    """96 columns over 7 ranks: shares of 14 and 13."""
    x_ND = rows(9, 64)
    parts = []
    for shard in shards(tiny_v3, num_ranks, torch.float32, 0):
        assert isinstance(shard, DenseShard)
        parts.append(dense_ffn(x_ND, shard))
    want = hf_model(tiny_v3).model.layers[0].mlp(x_ND).detach()
    assert (torch.stack(parts).sum(dim=0) - want).abs().max() < 1e-5


def test_a_router_stored_in_bf16_stays_so_and_loses_no_bit(tiny_v3: Path) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    reader = RandomReader(spec, seed=3, dtype=torch.bfloat16, device=CPU)
    layer = load_shard(reader, spec, 0, 1, torch.bfloat16, CPU).layers[1]
    assert isinstance(layer.ffn, MoeShard)
    assert layer.ffn.gate_ED.dtype is torch.bfloat16
    x_ND = rows(8, spec.hidden, torch.bfloat16)
    ids, weights = route(x_ND, layer.ffn, spec)
    wide_ids, wide = route(x_ND, replace(layer.ffn, gate_ED=layer.ffn.gate_ED.float()), spec)
    assert torch.equal(ids, wide_ids)
    assert torch.equal(weights, wide)


def test_router_stays_fp32_in_a_bf16_model(tiny_v3: Path) -> None:
    (shard,) = shards(tiny_v3, 1, torch.bfloat16, 1)
    assert isinstance(shard, MoeShard)
    assert shard.correction_bias_E is not None
    assert (shard.gate_ED.dtype, shard.correction_bias_E.dtype) == (torch.float32, torch.float32)
    assert shard.gate_up.dtype is torch.bfloat16
    spec = ModelSpec.from_checkpoint(tiny_v3)
    x_ND = rows(8, spec.hidden, torch.bfloat16)
    _, weights = route(x_ND, shard, spec)
    assert weights.dtype is torch.float32
    assert moe_ffn(x_ND, shard, spec, KERNELS).dtype is torch.bfloat16
