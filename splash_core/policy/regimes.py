"""Which layout is predicted best over a grid of loads: the policy's own prediction, without a running group.

Each cell is a batch of requests whose lengths spread evenly over [context/2, context], as in the paper's
residency analysis: prompts to finish in prefill; in decode, requests that have their whole context and will
generate `OUTPUT_TOKENS` more. The policy's objective decides, admission included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_core.cost.footprint import Deployment
from splash_core.cost.model import CostModel
from splash_core.layout.layout import Layout
from splash_core.policy.outlook import outlooks
from splash_core.policy.snapshot import LayoutPool, Phase, Snapshot, WaitingSequence

OUTPUT_TOKENS = 1024
_GOLDEN = 0.6180339887498949
"""Multiples of it spread evenly over [0, 1), however many there are."""
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 1024, 4096, 16384, 32768, 65536, 131072, 262144, 524288)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeCell:
    """One point of the grid."""

    batch: int
    context: int
    """Tokens of the longest request."""
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
    recorded_rows: int = 0
    """As in a snapshot."""

    @classmethod
    def of(cls, deployment: Deployment, pools: Mapping[Layout, LayoutPool], *, recorded_rows: int) -> "Group":
        """The group of a deployment."""
        return cls(
            num_ranks=deployment.num_ranks,
            page_size=deployment.page_size,
            chunk_tokens=deployment.chunk_tokens,
            pools=pools,
            recorded_rows=recorded_rows,
        )


def regime_map(
    model: CostModel,
    group: Group,
    phase: Phase,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
) -> tuple[RegimeCell, ...]:
    """All cells, batch by batch."""
    return tuple(
        _cell(model, group, phase, batch=batch, context=context) for batch in batches for context in contexts
    )


def _cell(model: CostModel, group: Group, phase: Phase, *, batch: int, context: int) -> RegimeCell:
    output = OUTPUT_TOKENS if phase is Phase.DECODE else 0
    snapshot = Snapshot(
        time_s=0.0,
        group="plan",
        phase=phase,
        layout=next(iter(group.pools)),
        num_ranks=group.num_ranks,
        page_size=group.page_size,
        chunk_tokens=group.chunk_tokens,
        waiting=tuple(
            WaitingSequence(prompt_tokens=tokens, projected_output=output)
            for tokens in _lengths(batch, context)
        ),
        pools=group.pools,
        recorded_rows=group.recorded_rows,
    )
    looks = outlooks(snapshot, model)
    # A request that no layout holds is no demand to any of them: nothing is admitted.
    looks = {layout: look for layout, look in looks.items() if look.admitted}
    tokens = sum(_lengths(batch, context)) if phase is Phase.PREFILL else 1
    rates = {layout: tokens / look.objective_s for layout, look in looks.items()}
    best = max(rates, key=lambda layout: rates[layout], default=None)
    return RegimeCell(batch=batch, context=context, best=best, tokens_per_s=rates)


def _lengths(batch: int, context: int) -> tuple[int, ...]:
    """Lengths spread evenly over [context/2, context], in an order that no rank can foresee."""
    return tuple(context - int(context / 2 * ((index * _GOLDEN) % 1.0)) for index in range(batch))
