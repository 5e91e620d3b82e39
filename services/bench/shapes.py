"""The models that are measured: dimensions only, their weights are random.

`v3` is DeepSeek-V3's attention and width with fewer routed experts, the shape of the figures that other
engines were measured with; `tiny` runs in seconds on a CPU.
"""

from dataclasses import replace
from pathlib import Path

from splash_core.environment import cache_home
from splash_core.errors import ConfigError
from splash_core.spec.catalogue import named_spec
from splash_core.spec.model import ModelSpec, MoeSpec

SHAPES = ("v3", "tiny")
_V3_EXPERTS = 16
_PREFIX = "bench-"
"""Names of specs made from shapes begin with it."""


def bench_spec(shape: str, *, layers: int = 0, experts: int = 0) -> ModelSpec:
    """The model of a benchmark.

    Args:
        shape: one of `SHAPES`.
        layers: decoder layers; 0: as many as the shape has.
        experts: routed experts; 0: as many as the shape has.

    Raises:
        ConfigError: the shape is unknown, or a number is negative.
    """
    if shape not in SHAPES:
        raise ConfigError(f"model {shape!r} is not one of {', '.join(SHAPES)}")
    if layers < 0 or experts < 0:
        raise ConfigError(f"layers and experts must not be negative, got {layers} and {experts}")
    spec = _v3() if shape == "v3" else _tiny()
    layers = layers or spec.layers
    assert spec.moe is not None
    # One sparse layer at least: a model of dense layers only has no routed experts to measure.
    first_dense = min(spec.moe.first_dense, layers - 1)
    moe = _with_experts(replace(spec.moe, first_dense=first_dense), experts or spec.moe.num_experts)
    return replace(spec, name=f"bench-{shape}", layers=layers, moe=moe)


def shape_of(model: str) -> str:
    """The shape that a name like `bench-v3` means; other names as they are."""
    shape = model.removeprefix(_PREFIX)
    return shape if shape in SHAPES else model


def measured_spec(model: str, *, layers: int = 0, experts: int = 0) -> ModelSpec:
    """A shape (`v3` or `bench-v3`), or the dimensions of a checkpoint's folder, a fetched or a known model.

    Args:
        model: which.
        layers: decoder layers; 0: as many as it has.
        experts: routed experts; 0: as many as it has; of shapes only.

    Raises:
        ConfigError: it is none of these, or a number does not suit it.
    """
    shape = shape_of(model)
    if shape in SHAPES:
        return bench_spec(shape, layers=layers, experts=experts)
    folders = (Path(model), cache_home() / "models" / model)
    folder = next((path for path in folders if (path / "config.json").is_file()), None)
    spec = named_spec(model) if folder is None else ModelSpec.from_checkpoint(folder, name=folder.name)
    spec.check_servable()
    if experts or not 0 <= layers <= spec.layers:
        raise ConfigError(f"{spec.name} has {spec.layers} layers and its own experts; lower --layers only")
    return replace(spec, layers=layers or spec.layers)


def describe(spec: ModelSpec) -> dict[str, int | str]:
    """What a result must say of its model."""
    if spec.moe is None:
        return {"model": spec.name, "layers": spec.layers}
    return {
        "model": spec.name,
        "layers": spec.layers,
        "dense_layers": spec.moe.first_dense,
        "experts": spec.moe.num_experts,
        "top_k": spec.moe.top_k,
        "expert_groups": spec.moe.num_groups,
        "top_groups": spec.moe.top_groups,
    }


def _v3() -> ModelSpec:
    spec = named_spec("deepseek-v3")
    assert spec.moe is not None
    return replace(spec, moe=replace(spec.moe, num_experts=_V3_EXPERTS), mtp_layers=0)


def _tiny() -> ModelSpec:
    spec = named_spec("deepseek-v3")
    assert spec.moe is not None
    return replace(
        spec,
        layers=4,
        hidden=64,
        heads=8,
        q_lora_rank=24,
        kv_lora_rank=32,
        nope_dim=16,
        rope_dim=8,
        v_dim=16,
        vocab=320,
        dense_intermediate=96,
        moe=replace(
            spec.moe, num_experts=8, top_k=2, num_groups=4, top_groups=2, intermediate=32, first_dense=1
        ),
        max_positions=8192,
        mtp_layers=0,
    )


def _with_experts(moe: MoeSpec, experts: int) -> MoeSpec:
    """The same routing over another number of experts, where that is possible."""
    per_group = experts // moe.num_groups
    if experts % moe.num_groups == 0 and per_group * moe.top_groups >= moe.top_k:
        return replace(moe, num_experts=experts)
    # Too few experts for the groups: rows choose among all of them.
    return replace(moe, num_experts=experts, num_groups=1, top_groups=1, top_k=min(moe.top_k, experts))
