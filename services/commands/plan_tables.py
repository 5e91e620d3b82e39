"""A plan report as tables for people; numbers as in the JSON, with units."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from splash_core.layout.catalog import FeasibleLayout, InfeasibleLayout
from splash_core.layout.layout import Layout
from splash_core.layout.memory import MemoryAccount
from splash_core.policy.plan import REFERENCE_REQUESTS, PlanReport
from splash_core.policy.regimes import OUTPUT_TOKENS, RegimeCell
from splash_core.policy.snapshot import Phase
from splash_core.units import format_bytes


def report_tables(report: PlanReport) -> Iterator[RenderableType]:
    """Everything that the report says, top down."""
    deployment = report.deployment
    yield (
        f"{report.spec.name} in {deployment.precision.name} on {deployment.num_ranks} × {report.gpu.name}, "
        f"{deployment.fraction:.0%} of {format_bytes(deployment.memory_bytes)} each, pages of "
        f"{deployment.page_size} tokens, steps of at most {deployment.chunk_tokens:,} rows"
    )
    yield _layouts(report)
    yield from _reasons(report)
    yield _facts(report)
    yield _switches(report)
    for phase, cells in report.regimes.items():
        yield _regimes(phase, cells)
    yield f"θ of {report.gpu.name}: {report.gpu.provenance}"


def _layouts(report: PlanReport) -> Table:
    table = Table(title="Layouts, per rank", title_justify="left")
    for name in ("layout", "projections", "rest and working memory", "pool tokens"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    table.add_column("distinct tokens, group", justify="right")
    table.add_column("longest context", justify="right")
    account = report.account
    for layout, verdict in report.verdicts.items():
        fits = isinstance(verdict, FeasibleLayout)
        table.add_row(
            layout.value,
            format_bytes(account.weights_bytes(layout)),
            format_bytes(account.other_bytes[layout]),
            f"{account.pool_pages(layout) * account.page_size:,}" if fits else _short_reason(account, layout),
            f"{account.distinct_tokens(layout):,}" if fits else "",
            f"{account.longest_context(layout):,}" if fits else "",
        )
    return table


def _short_reason(account: MemoryAccount, layout: Layout) -> str:
    return "does not fit" if account.can_run(layout) else "heads do not split"


def _reasons(report: PlanReport) -> Iterator[str]:
    for verdict in report.verdicts.values():
        if isinstance(verdict, InfeasibleLayout):
            yield verdict.reason


def _facts(report: PlanReport) -> str:
    return (
        f"KV {report.account.token_bytes:,} bytes a token; the model allows {report.spec.max_positions:,} "
        f"positions.\nProjections {format_bytes(report.projection_bytes_per_layer)} a layer, of which a rank "
        f"gathers {format_bytes(report.gathered_bytes_per_layer)} "
        f"({format_bytes(report.spec.num_mla_layers * report.gathered_bytes_per_layer)} over "
        f"{report.spec.num_mla_layers} layers).\n{report.borrowed_slots:,} pages borrow room from weights; "
        f"{format_bytes(report.rounding_bytes)} are lost to rounding.\n"
    )


def _switches(report: PlanReport) -> Table:
    title = f"Switches, {REFERENCE_REQUESTS} requests of {report.reference_context:,} tokens"
    table = Table(title=title, title_justify="left")
    for name in ("from", "to", "weights", "KV"):
        table.add_column(name)
    table.add_column("received per rank", justify="right")
    table.add_column("per layer", justify="right")
    for switch in report.switches:
        kind, moved = switch.kind, switch.moved
        table.add_row(
            kind.layout_from.value,
            kind.layout_to.value,
            kind.weights.value.replace("_", "-"),
            kind.kv.value.replace("_", "-"),
            format_bytes(switch.bytes_per_rank),
            format_bytes(moved.weights + moved.kv),
        )
    return table


def _regimes(phase: Phase, cells: tuple[RegimeCell, ...]) -> Table:
    aim = "whole prompts" if phase is Phase.PREFILL else f"{OUTPUT_TOKENS:,} new tokens each"
    table = Table(
        title=f"Best layout predicted in {phase.value} ({aim}): requests × longest context",
        title_justify="left",
    )
    table.add_column("requests", justify="right")
    contexts = sorted({cell.context for cell in cells})
    for context in contexts:
        table.add_column(_tokens(context), justify="center")
    best = {(cell.batch, cell.context): cell.best for cell in cells}
    for batch in sorted({cell.batch for cell in cells}):
        table.add_row(str(batch), *(_name(best[batch, context]) for context in contexts))
    return table


def _name(layout: Layout | None) -> str:
    return layout.value if layout else "–"


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count >= 1024 else str(count)
