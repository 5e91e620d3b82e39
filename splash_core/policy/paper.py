"""What the SPLASH paper says it measured, point by point: which prefill layout led, and by how much.

Prose only: the tables with all values (Tables 4 and 6) are not in the text that this was read from, so a
point has the winners that the text leaves possible, and a value or a lead only where a sentence gives it.
The paper is cited in docs/model.md; K is 1,024 tokens and every request generates `OUTPUT_TOKENS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from splash_core.layout.layout import Layout

OUTPUT_TOKENS = 1024
_K = 1024
TP, CP, DP, DOP = Layout.TP, Layout.CP, Layout.DP, Layout.DOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """How far the winner is ahead of the runner-up, relative to it: a range over points named together."""

    runner_up: Layout
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One sampled position of one sweep."""

    sweep: str
    batch: int
    input_tokens: int
    winners: tuple[Layout, ...]
    """Those that the text leaves possible; one where it names the winner."""
    source: str
    """Section of the paper."""
    lead: Lead | None = None
    tokens_per_s: Mapping[Layout, float] = field(default_factory=dict[Layout, float])
    """Total throughput, where the text gives it."""

    @property
    def winner(self) -> Layout | None:
        """The layout that led; None where the text does not say."""
        return self.winners[0] if len(self.winners) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSweeps:
    """One platform's sweeps, and the deployment that they were measured on."""

    gpu: str
    model: str
    ranks: int
    fraction: float
    decode_ranks: int
    """Of the decode group, which runs DP-attention whatever the prefill layout."""
    decode_source: str
    points: tuple[MeasuredPoint, ...]


_NOT_DOP = "?"
"""In the sweeps below: the text says only that DOP did not lead."""


def _sweep(
    winners: str,
    source: str,
    *,
    batch: int = 0,
    input_k: int = 0,
    leads: Mapping[int, Lead] = MappingProxyType({}),
    values: Mapping[int, Mapping[Layout, float]] = MappingProxyType({}),
) -> tuple[MeasuredPoint, ...]:
    """One sweep over what is not given, of batch size and input (in K): `position:winner`, with spaces."""
    name = f"input length, B={batch}" if batch else f"batch, {input_k}K input"
    points: list[MeasuredPoint] = []
    for text in winners.split():
        position, _, winner = text.partition(":")
        at = int(position)
        points.append(
            MeasuredPoint(
                sweep=name,
                batch=batch or at,
                input_tokens=_K * (input_k or at),
                winners=(TP, CP, DP) if winner == _NOT_DOP else (Layout(winner),),
                source=source,
                lead=leads.get(at),
                tokens_per_s=values.get(at, {}),
            )
        )
    return tuple(points)


def _over_cp(least: float, most: float, *positions: int) -> Mapping[int, Lead]:
    return dict.fromkeys(positions, Lead(runner_up=CP, least=least, most=most))


_B200 = (
    *_sweep(
        "1:TP 4:TP 16:DP 32:DP 64:DP 128:CP 256:DOP 512:DOP",
        "§5.2",
        batch=16,
        leads=_over_cp(0.034, 0.106, 256, 512),
    ),
    *_sweep(
        "1:TP 4:DP 16:DP 32:DP 64:CP 128:CP 256:DOP 512:DOP",
        "§5.2",
        batch=32,
        leads=_over_cp(0.034, 0.106, 256, 512),
        values={256: {DOP: 23_470.0}},
    ),
    *_sweep(
        "1:TP 4:DP 8:DP 16:DP 32:CP 64:CP 128:DOP 256:DOP",
        "§5.2",
        input_k=64,
        leads=_over_cp(0.083, 0.087, 128, 256),
    ),
    *_sweep(
        "1:CP 4:CP 8:DP 16:CP 32:CP 64:CP 128:DOP 256:DOP",
        "§5.2",
        input_k=128,
        leads=_over_cp(0.093, 0.110, 128, 256),
        values={256: {DOP: 30_724.0, CP: 27_677.0}},
    ),
)

_H200 = (
    *_sweep(
        "1:TP 4:DP 16:DP 32:CP 64:CP 128:CP 256:DOP", "§I.2", batch=16, leads=_over_cp(0.042, 0.103, 256)
    ),
    *_sweep(
        "1:TP 4:DP 16:DP 32:CP 64:CP 128:DOP 256:DOP",
        "§I.2",
        batch=32,
        leads=_over_cp(0.042, 0.103, 128, 256),
    ),
    *_sweep(
        "1:? 4:? 8:? 16:DP 32:? 64:? 128:DOP 256:DOP",
        "§I.2",
        input_k=32,
        leads=_over_cp(0.058, 0.061, 128, 256),
    ),
    *_sweep(
        "1:? 4:? 8:? 16:? 32:? 64:DOP 128:DOP", "§I.2", input_k=64, leads=_over_cp(0.104, 0.121, 64, 128)
    ),
)

PAPER_SWEEPS: Mapping[str, PaperSweeps] = MappingProxyType(
    {
        "b200": PaperSweeps(
            gpu="b200",
            model="glm-5",
            ranks=8,
            fraction=0.85,
            decode_ranks=16,
            decode_source="§C.1",
            points=_B200,
        ),
        "h200": PaperSweeps(
            gpu="h200",
            model="deepseek-v3.2",
            ranks=8,
            fraction=0.90,
            decode_ranks=8,
            decode_source="assumed: the paper says one decode instance",
            points=_H200,
        ),
    }
)
"""By GPU. The DCU sweeps (§H.2) are of a hybrid model whose dimensions the paper does not give."""
