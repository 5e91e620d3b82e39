import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from splash_core.checkpoints.tiny import write_tiny
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.engine.engine import RankEngine
from splash_core.errors import ConfigError
from splash_core.kv.arena import Arena
from splash_core.layout.layout import RULES, Layout, Matrix, Projection
from splash_core.layout.shares import balanced_range
from splash_core.model.checkpoint import Checkpoint
from splash_core.model.embedding import embed_partial
from splash_core.model.logits import logits_partial
from splash_core.model.shards import MoeShard, RankWeights
from splash_core.model.weights import load_shard, planned_bytes, read_projection
from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory
from tests.support.group import arena_with

CPU = torch.device("cpu")


def load_all(directory: Path, num_ranks: int, dtype: torch.dtype = torch.float32) -> list[RankWeights]:
    with Checkpoint.open(directory) as checkpoint:
        return [
            load_shard(checkpoint, checkpoint.spec, rank, num_ranks, dtype, CPU) for rank in range(num_ranks)
        ]


def leaves(value: object, path: str = "") -> dict[str, Tensor]:
    """All tensors of nested dataclasses and tuples, by path."""
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, tuple):
        parts = {str(index): item for index, item in enumerate(value)}
    else:
        parts = {name: getattr(value, name) for name in getattr(value, "__dataclass_fields__", ())}
    return {key: leaf for name, item in parts.items() for key, leaf in leaves(item, f"{path}.{name}").items()}


def edited(source: Path, target: Path, edit: "dict[str, Tensor | None]") -> Path:
    """A copy of a checkpoint with tensors replaced, added, or removed (None)."""
    shutil.copytree(source, target)
    tensors: dict[str, Tensor | None] = {**load_file(source / "model.safetensors"), **edit}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, target / "model.safetensors")
    return target


@pytest.mark.parametrize(("total", "num_ranks"), [(10, 3), (3, 5), (0, 2), (320, 4), (97, 8)])
def test_balanced_ranges_tile_the_whole_and_differ_by_at_most_one(total: int, num_ranks: int) -> None:
    ranges = [balanced_range(total, num_ranks, rank) for rank in range(num_ranks)]
    assert [item for start, end in ranges for item in range(start, end)] == list(range(total))
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_tiny_checkpoints_are_deterministic(tmp_path: Path) -> None:
    first, second = write_tiny(tmp_path / "a", seed=3), write_tiny(tmp_path / "b", seed=3)
    assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in second.iterdir())
    assert all((second / path.name).read_bytes() == path.read_bytes() for path in first.iterdir())
    other = write_tiny(tmp_path / "c", seed=4)
    assert (other / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()


@pytest.mark.parametrize("family", ["v2", "v3", "v32", "glm5"])
def test_transformers_loads_every_family_strictly(tiny_checkpoint: TinyFactory, family: str) -> None:
    from tests.oracle import hf_logits

    logits = hf_logits(tiny_checkpoint(family), [1, 2, 3])
    assert logits.shape == (3, 320)
    assert 0.1 < float(logits.std()) < 10


def test_tokenizer_round_trips_any_bytes_and_renders_chats(tiny_v3: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_v3)
    text = "Ünïcödé 🙂\n\ttabs  and spaces"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|bos|><|user|>hi<|end|><|assistant|>"
    assert tokenizer.encode(chat, add_special_tokens=False)[:2] == [256, 258]
    assert tokenizer.eos_token_id == 257


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_fused_experts_and_index_files_load_the_same(tiny_checkpoint: TinyFactory, num_ranks: int) -> None:
    plain = tiny_checkpoint("v3")
    fused = tiny_checkpoint("v3", fused_experts=True, max_shard_bytes=200_000)
    assert len(list(fused.glob("model-*.safetensors"))) > 3
    for ours, theirs in zip(load_all(plain, num_ranks), load_all(fused, num_ranks), strict=True):
        expected, got = leaves(ours), leaves(theirs)
        assert expected.keys() == got.keys()
        assert all(torch.equal(tensor, got[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_shards_of_all_ranks_are_the_whole_model(tiny_v3: Path, num_ranks: int) -> None:
    (whole,) = load_all(tiny_v3, 1)
    parts = load_all(tiny_v3, num_ranks)
    assert torch.equal(torch.cat([part.embedding.weight_VjD for part in parts]), whole.embedding.weight_VjD)
    assert torch.equal(torch.cat([part.lm_head.weight_VjD for part in parts]), whole.lm_head.weight_VjD)
    ffns = [part.layers[1].ffn for part in parts]
    want = whole.layers[1].ffn
    assert isinstance(want, MoeShard)
    assert want.shared is not None
    experts = [ffn for ffn in ffns if isinstance(ffn, MoeShard)]
    assert torch.equal(torch.cat([ffn.gate_up for ffn in experts]), want.gate_up)
    assert torch.equal(torch.cat([ffn.down for ffn in experts]), want.down)
    assert [expert for ffn in experts for expert in range(ffn.first, ffn.last)] == list(range(8))
    shared = [ffn.shared for ffn in experts if ffn.shared is not None]
    gates, ups = zip(*(part.gate_up.chunk(2) for part in shared), strict=True)
    assert torch.equal(torch.cat((*gates, *ups)), want.shared.gate_up)
    assert torch.equal(torch.cat([part.down for part in shared], dim=1), want.shared.down)


def test_projections_come_in_arena_form(tiny_v3: Path, tiny_v2_lite: Path) -> None:
    stored = load_file(tiny_v3 / "model.safetensors")
    with Checkpoint.open(tiny_v3) as checkpoint:
        spec = checkpoint.spec
        prefix = "model.layers.2.self_attn."
        q_b = read_projection(checkpoint, spec, 2, Matrix.Q_B, 2, 5)
        assert torch.equal(q_b, stored[prefix + "q_b_proj.weight"].view(8, 24, 24)[2:5].flatten(0, 1))
        kv_b = read_projection(checkpoint, spec, 2, Matrix.KV_B, 2, 5)
        assert torch.equal(kv_b, stored[prefix + "kv_b_proj.weight"].view(8, 32, 32)[2:5])
        o = read_projection(checkpoint, spec, 2, Matrix.O, 2, 5)
        assert torch.equal(o, stored[prefix + "o_proj.weight"].t()[2 * 16 : 5 * 16])
        assert read_projection(checkpoint, spec, 2, Matrix.O, 3, 3).shape == (0, 64)
    with Checkpoint.open(tiny_v2_lite) as checkpoint:
        whole = read_projection(checkpoint, checkpoint.spec, 0, Matrix.Q_B, 0, 8)
        assert whole.shape == (8 * 24, 64)


def test_tied_head_biases_and_absent_q_a(tiny_v3_dense: Path) -> None:
    (weights,) = load_all(tiny_v3_dense, 1)
    assert weights.lm_head is weights.embedding
    layer = weights.layers[0]
    assert layer.latent.q_norm is None
    assert layer.o_bias_D is not None
    assert layer.latent.bias is not None
    assert (layer.o_bias_D.shape, layer.latent.bias.shape, layer.latent.kv_norm.shape) == (
        (64,),
        (40,),
        (32,),
    )
    assert layer.latent.weight.shape == (40, 64)


def test_each_rank_reads_only_its_share_and_reports_it(tiny_v3: Path) -> None:
    total = (tiny_v3 / "model.safetensors").stat().st_size
    calls: list[tuple[int, int]] = []
    with Checkpoint.open(tiny_v3) as checkpoint:
        planned = planned_bytes(checkpoint, 1, 4, heads=dict.fromkeys(Matrix, 2))
        checkpoint.track(lambda done, of: calls.append((done, of)), planned)
        load_shard(checkpoint, checkpoint.spec, 1, 4, torch.float32, CPU)
        for layer in range(checkpoint.spec.layers):
            for matrix in Matrix:
                read_projection(checkpoint, checkpoint.spec, layer, matrix, 2, 4)
        assert checkpoint.bytes_read == planned
    assert calls[-1] == (planned, planned)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert planned < 0.4 * total


@pytest.mark.parametrize("layout", Layout)
def test_an_engine_reads_what_its_layout_keeps_and_foretells_the_bytes(tiny_v3: Path, layout: Layout) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=2, page_size=4, elem_bytes=4, ordinary=4)

    def load(comms: RankComms) -> tuple[tuple[int, int], Arena]:
        calls: list[tuple[int, int]] = []
        engine = RankEngine.load(
            tiny_v3,
            spec=spec,
            arena=arena,
            memory=torch.zeros(arena.arena_bytes, dtype=torch.uint8),
            comms=comms,
            dtype=torch.float32,
            layout=layout,
            progress=lambda done, of: calls.append((done, of)),
        )
        return calls[-1], engine.ctx.arena

    with Checkpoint.open(tiny_v3) as checkpoint:
        for rank, ((done, of), views) in enumerate(run_ranks(2, load)):
            assert done == of
            for matrix, owner in itertools.product(Matrix, range(2)):
                half = spec.heads // 2
                stored = read_projection(checkpoint, spec, 1, matrix, owner * half, (owner + 1) * half)
                kept = owner == rank or RULES[layout].projections[matrix] is Projection.REPLICATED
                shard = views.shard(1, matrix, owner).reshape(stored.shape)
                assert torch.equal(shard, stored if kept else torch.zeros_like(stored))


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_vocabulary_shards_embed_and_score_like_the_whole(tiny_v3: Path, num_ranks: int) -> None:
    stored = load_file(tiny_v3 / "model.safetensors")
    tokens_N = torch.tensor([0, 319, 106, 107, 213, 5])
    parts = load_all(tiny_v3, num_ranks)
    embedded = torch.stack([embed_partial(tokens_N, part.embedding) for part in parts]).sum(dim=0)
    assert torch.equal(embedded, stored["model.embed_tokens.weight"][tokens_N])
    h_ND = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    logits = torch.cat([logits_partial(h_ND, part.lm_head) for part in parts], dim=1)
    torch.testing.assert_close(logits, h_ND @ stored["lm_head.weight"].t())


def test_dtype_is_converted(tiny_checkpoint: TinyFactory) -> None:
    stored_bf16 = tiny_checkpoint("v3", dtype=torch.bfloat16)
    (weights,) = load_all(stored_bf16, 1, torch.float64)
    assert {tensor.dtype for tensor in leaves(weights).values()} == {torch.float64}
    with Checkpoint.open(stored_bf16) as checkpoint:
        assert checkpoint.spec.stored_dtype == "bfloat16"
        assert read_projection(checkpoint, checkpoint.spec, 0, Matrix.Q_B, 0, 1).dtype is torch.bfloat16


def test_missing_and_leftover_names_are_listed(tiny_v3: Path, tmp_path: Path) -> None:
    lacking = edited(tiny_v3, tmp_path / "lacking", {"model.norm.weight": None})
    with pytest.raises(ConfigError, match=r"1 tensors are missing: model\.norm\.weight"):
        Checkpoint.open(lacking)
    extra = {f"model.extra.{index:02d}.weight": torch.zeros(1) for index in range(11)}
    with pytest.raises(
        ConfigError, match=r"11 tensors are not part of the model: .*extra\.07\.weight and 3 more"
    ):
        Checkpoint.open(edited(tiny_v3, tmp_path / "extra", dict(extra)))
    scale = {"model.layers.0.self_attn.o_proj.weight_scale_inv": torch.zeros(1)}
    with pytest.raises(ConfigError, match="weight_scale_inv"):
        Checkpoint.open(edited(tiny_v3, tmp_path / "scales", dict(scale)))


def test_tolerated_names(tiny_v3: Path, tmp_path: Path) -> None:
    extra: dict[str, Tensor | None] = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        "model.layers.4.enorm.weight": torch.zeros(64),
    }
    directory = edited(tiny_v3, tmp_path / "mtp", extra)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    with Checkpoint.open(directory) as checkpoint:
        assert checkpoint.spec.mtp_layers == 1
    (directory / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    with pytest.raises(ConfigError, match=r"model\.layers\.4\.enorm\.weight"):
        Checkpoint.open(directory)


def test_wrong_shapes_and_types_are_named(tiny_v3: Path, tmp_path: Path) -> None:
    name = "model.layers.1.input_layernorm.weight"
    short = edited(tiny_v3, tmp_path / "short", {name: torch.zeros(63)})
    with pytest.raises(ConfigError, match=rf"{name} has shape \[63\], .* needs \[64\]"):
        load_all(short, 1)
    integers = edited(tiny_v3, tmp_path / "integers", {name: torch.zeros(64, dtype=torch.int8)})
    with pytest.raises(ConfigError, match=f"{name} is stored as I8"):
        load_all(integers, 1)


def test_unusable_directories_are_explained(tiny_v3: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(ConfigError, match="does not exist"):
        Checkpoint.open(bare)
    shutil.copy(tiny_v3 / "config.json", bare)
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(bare)
    (bare / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        Checkpoint.open(bare)


def test_damaged_indexes_are_explained(tiny_checkpoint: TinyFactory, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_checkpoint("v3", fused_experts=True, max_shard_bytes=200_000), broken)
    index = broken / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name, file = next(iter(content["weight_map"].items()))
    other = next(part for part in content["weight_map"].values() if part != file)
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], name: other}}))
    with pytest.raises(ConfigError, match="lacks"):
        Checkpoint.open(broken)
    index.write_text(json.dumps({"weight_map": {name: "../outside.safetensors"}}))
    with pytest.raises(ConfigError, match="must lie beside it"):
        Checkpoint.open(broken)
    (broken / file).unlink()
    index.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        Checkpoint.open(broken)


def test_planned_only_families_are_refused_before_reading(tiny_checkpoint: TinyFactory) -> None:
    with pytest.raises(ConfigError, match="planned only"):
        Checkpoint.open(tiny_checkpoint("glm5"))


def test_model_and_spec_import_without_transformers() -> None:
    """Ranks and leaders start without it: its import takes seconds."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import splash_core.model.weights, splash_core.model.sampler, splash_core.model.moe\n"
        "import splash_core.model.rope, splash_core.model.embedding, splash_core.checkpoints.tiny\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "fine\n", done.stderr
