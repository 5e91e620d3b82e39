"""Random weights: one model, whoever generates which slice of it."""

import pytest
import torch

from services.bench.shapes import bench_spec
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.engine.engine import RankEngine
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.model.names import EMBEDDING, expected_tensors
from splash_core.model.random_weights import RandomReader
from splash_core.model.weights import load_shard
from splash_core.scheduling.step import StepResult
from tests.support.group import arena_with
from tests.support.plans import PlanBuilder

CPU = torch.device("cpu")
SPEC = bench_spec("tiny")


def reader(seed: int = 0, dtype: torch.dtype = torch.float32) -> RandomReader:
    return RandomReader(SPEC, seed=seed, dtype=dtype, device=CPU)


def test_a_slice_is_cut_from_the_whole() -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    whole = reader().read(name)
    assert torch.equal(reader().read(name, (3, 9), (2, 5)), whole[3:9, 2:5])


def test_tensors_differ_by_name_and_seed_only() -> None:
    first, second = "model.layers.0.self_attn.q_b_proj.weight", "model.layers.1.self_attn.q_b_proj.weight"
    assert torch.equal(reader().read(first), reader().read(first))
    assert not torch.equal(reader().read(first), reader().read(second))
    assert not torch.equal(reader().read(first), reader(seed=1).read(first))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_has_its_shape_and_a_sane_size(dtype: torch.dtype) -> None:
    for name, shape in expected_tensors(SPEC, fused=False).items():
        tensor = reader(dtype=dtype).read(name).float()
        assert tuple(tensor.shape) == shape, name
        if len(shape) > 1:
            gain = tensor.std() * shape[-1] ** 0.5
            assert 0.8 < gain < 1.2, name
        elif "norm" in name:
            assert 0.9 < tensor.mean() < 1.1, name
        else:
            assert tensor.abs().max() < 0.1, name


def test_shards_of_all_ranks_are_the_whole() -> None:
    shards = [load_shard(reader(), SPEC, rank, 3, torch.float32, CPU) for rank in range(3)]
    embedding = torch.cat([shard.embedding.weight_VjD for shard in shards])
    assert torch.equal(embedding, reader().read(EMBEDDING))


def arena(num_ranks: int) -> ArenaMap:
    return arena_with(SPEC, num_ranks=num_ranks, page_size=4, elem_bytes=8, ordinary=60)


def greedy_tokens(layout: Layout, num_ranks: int) -> list[int]:
    """Tokens that random engines draw after a prompt of two chunks."""
    slots = arena(num_ranks)
    builder = PlanBuilder(slots, layout)
    seqs = [builder.start([(7 * seq + 3 * at) % SPEC.vocab for at in range(20)]) for seq in range(5)]
    plans = [builder.step(dict.fromkeys(seqs, 12)), builder.step(dict.fromkeys(seqs, 8))]

    def rank_main(comms: RankComms) -> list[StepResult]:
        engine = RankEngine.random(
            11,
            spec=SPEC,
            arena=slots,
            memory=torch.zeros(slots.arena_bytes, dtype=torch.uint8),
            comms=comms,
            dtype=torch.float64,
            layout=layout,
        )
        return [engine.step(plan) for plan in plans]

    results = run_ranks(num_ranks, rank_main)
    drawn = {token.seq: token.token for steps in results for token in steps[-1].tokens}
    return [drawn[seq] for seq in seqs]


def test_engines_of_all_layouts_and_sizes_hold_the_same_model() -> None:
    expected = greedy_tokens(Layout.TP, 1)
    assert len(set(expected)) > 1
    for layout in Layout:
        for num_ranks in (2, 4):
            assert greedy_tokens(layout, num_ranks) == expected
