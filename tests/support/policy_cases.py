"""Models, loads and snapshots for tests of the cost model and of the policy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import analytical_profile
from splash_core.ids import RankId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.policy.snapshot import (
    LayoutPool,
    Phase,
    RunningSequence,
    Snapshot,
    WaitingSequence,
)
from splash_core.spec.hardware import named_gpu
from splash_core.spec.model import ModelSpec

SMOL = ModelSpec.from_hf(
    {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 320,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 192,
        "v_head_dim": 64,
        "vocab_size": 49152,
        "intermediate_size": 1536,
        "n_routed_experts": None,
        "max_position_embeddings": 8192,
    },
    name="smollm2-mla",
)
"""The demo model's dimensions."""

PAGE = 16


def cost_model(spec: ModelSpec = SMOL, *, gpu: str = "cpu", dtype: str = "fp32", ranks: int = 2) -> CostModel:
    """The model of a deployment with an analytical profile."""
    return CostModel(
        spec=spec,
        precision=named_precision(dtype),
        profile=analytical_profile(named_gpu(gpu), dtype=dtype),
        num_ranks=ranks,
    )


def pools(tokens: int = 8192, **changed: LayoutPool) -> Mapping[Layout, LayoutPool]:
    """The standard layouts feasible with equal pools, but for those named."""
    pool = LayoutPool(feasible=True, total_tokens=tokens, free_tokens=tokens)
    even = dict.fromkeys(STANDARD_LAYOUTS, pool)
    return {**even, **{Layout(name): pool for name, pool in changed.items()}}


def decoding(count: int, context: int, *, ranks: int = 2, output: int = 200) -> list[RunningSequence]:
    """`count` decode sequences spread over the owners."""
    return [
        RunningSequence(
            context_tokens=context, step_rows=1, projected_output=output, owner=RankId(index % ranks)
        )
        for index in range(count)
    ]


def prompts(count: int, tokens: int, *, ranks: int = 2) -> list[RunningSequence]:
    """`count` prompts of which nothing is computed yet."""
    return [
        RunningSequence(
            context_tokens=0, step_rows=tokens, remaining_prompt=tokens, owner=RankId(index % ranks)
        )
        for index in range(count)
    ]


def snapshot(
    running: Sequence[RunningSequence] = (),
    *,
    time_s: float = 0.0,
    phase: Phase = Phase.DECODE,
    layout: Layout = Layout.DP,
    waiting: Sequence[WaitingSequence] = (),
    room: Mapping[Layout, LayoutPool] | None = None,
    **changed: object,
) -> Snapshot:
    """A snapshot of a group of two ranks, with room for everything unless said otherwise."""
    value = Snapshot(
        time_s=time_s,
        group="decode-0",
        phase=phase,
        layout=layout,
        num_ranks=2,
        page_size=PAGE,
        chunk_tokens=256,
        running=tuple(running),
        waiting=tuple(waiting),
        pools=pools() if room is None else room,
    )
    return replace(value, **changed)  # type: ignore[arg-type]
