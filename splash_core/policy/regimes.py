"""Which layout is predicted best over a grid of loads: the policy's own prediction, without a running group.

Each cell is a batch of equal requests: prompts to finish in prefill; in decode, requests that have their
whole context and will generate `OUTPUT_TOKENS` more. The policy's objective decides, admission included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_core.cost.model import CostModel
from splash_core.layout.layout import Layout
from splash_core.policy.outlook import outlooks
from splash_core.policy.snapshot import LayoutPool, Phase, Snapshot, WaitingSequence

OUTPUT_TOKENS = 1024
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131072, 262144, 524288)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid."""

    batch: int
    context: int
    best: Layout | None
    """None when no layout can hold even one of the requests."""
    tokens_per_s: Mapping[Layout, float]
    """Prompt tokens in prefill, new tokens in decode; 0 where a request would never be admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group on paper: pools and sizes."""

    num_ranks: int
    page_size: int
    chunk_tokens: int
    pools: Mapping[Layout, LayoutPool]


def regime_map(
    model: CostModel,
    group: Group,
    phase: Phase,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
) -> tuple[Cell, ...]:
    """All cells, batch by batch."""
    return tuple(
        _cell(model, group, phase, batch=batch, context=context) for batch in batches for context in contexts
    )


def _cell(model: CostModel, group: Group, phase: Phase, *, batch: int, context: int) -> Cell:
    output = OUTPUT_TOKENS if phase is Phase.DECODE else 0
    request = WaitingSequence(prompt_tokens=context, projected_output=output)
    snapshot = Snapshot(
        time_s=0.0,
        group="plan",
        phase=phase,
        layout=next(iter(group.pools)),
        num_ranks=group.num_ranks,
        page_size=group.page_size,
        chunk_tokens=group.chunk_tokens,
        waiting=(request,) * batch,
        pools=group.pools,
    )
    looks = outlooks(snapshot, model)
    # A request that no layout holds is no demand to any of them: nothing is admitted.
    looks = {layout: look for layout, look in looks.items() if look.admitted}
    tokens = batch * context if phase is Phase.PREFILL else 1
    rates = {layout: tokens / look.objective_s for layout, look in looks.items()}
    best = max(rates, key=lambda layout: rates[layout], default=None)
    return Cell(batch=batch, context=context, best=best, tokens_per_s=rates)
