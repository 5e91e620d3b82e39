"""A comparison as tables for people; numbers as in the JSON, with units."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from splash_core.cost.measured_on import described
from splash_core.simulate.comparison import Summary, WorkloadComparison

_SHOWN_SWITCHES = 12
_WORDS = ("run", "group", "from", "to", "how")
"""Columns that are no numbers."""


def comparison_tables(comparison: WorkloadComparison) -> Iterator[RenderableType]:
    """Everything that a comparison says, top down."""
    fleet = comparison.fleet
    groups = " + ".join(f"{count} {role.value}" for role, count in fleet.groups.items() if count)
    profile = fleet.model.profile
    yield (
        f"{comparison.workload}: {fleet.model.spec.name} on {groups} groups of {fleet.model.num_ranks} "
        f"ranks, θ of {described(profile, fleet.model.spec)}"
    )
    for warning in comparison.warnings:
        yield f"the policy's {warning}"
    yield _runs(comparison)
    yield _latencies(comparison)
    for layout, reason in fleet.infeasible.items():
        yield f"{layout} is not feasible: {reason}"
    refused = comparison.policy.ledger.refused
    if refused:
        yield "not served: " + ", ".join(f"{count} {reason}" for reason, count in refused.items())
    yield _switches(comparison.policy)
    yield (
        f"regret {comparison.regret:.2%}: the policy's makespan over the oracle's. good: TTFT at most "
        f"{comparison.objectives.ttft_s:g} s, mean ITL at most {comparison.objectives.itl_s * 1e3:g} ms"
    )


def _summaries(comparison: WorkloadComparison) -> Iterator[tuple[str, Summary, str]]:
    """Each run's name and figures, and by how much longer than it the policy takes."""
    yield "policy", comparison.policy, ""
    for layout, summary in comparison.fixed.items():
        yield layout.value, summary, f"{comparison.against(layout):+.1%}"
    yield "oracle", comparison.oracle, f"{comparison.regret:+.1%}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        words = name in _WORDS
        table.add_column(name, justify="left" if words else "right", no_wrap=words, overflow="fold")
    return table


def _runs(comparison: WorkloadComparison) -> Table:
    table = _table("Runs", "run", "makespan s", "policy takes", "tokens/s", "good", "switches", "exposed s")
    for name, summary, against in _summaries(comparison):
        figures = summary.to_json()
        table.add_row(
            name,
            f"{figures['makespan_s']:,.1f}",
            against,
            f"{figures['tokens_per_s']:,.0f}",
            f"{figures['goodput']['share']:.0%}",
            f"{figures['switches']}",
            f"{figures['exposed_s']:.3f}",
        )
    return table


def _latencies(comparison: WorkloadComparison) -> Table:
    table = _table("Latencies", "run", "TTFT p50 s", "p99 s", "ITL p50 ms", "p99 ms", "mean request s")
    for name, summary, _ in _summaries(comparison):
        figures = summary.to_json()
        ttft, itl = figures["ttft_s"], figures["itl_s"]
        table.add_row(
            name,
            f"{ttft['p50']:.3f}",
            f"{ttft['p99']:.3f}",
            f"{itl['p50'] * 1e3:.1f}",
            f"{itl['p99'] * 1e3:.1f}",
            f"{figures['mean_latency_s']:.2f}",
        )
    return table


def _switches(summary: Summary) -> Table:
    switches = summary.ledger.switches
    more = f", the first {_SHOWN_SWITCHES}" if len(switches) > _SHOWN_SWITCHES else ""
    title = f"Switches of the policy: {len(switches)}{more}"
    table = _table(title, "time s", *_WORDS[1:], "exposed ms", "ahead", "longer ms")
    for switch in switches[:_SHOWN_SWITCHES]:
        table.add_row(
            f"{switch.time_s:,.2f}",
            switch.group,
            switch.layout_from.value,
            switch.layout_to.value,
            switch.mode.value,
            f"{switch.exposed_s * 1e3:.2f}",
            f"{switch.ahead_steps}",
            f"{switch.ahead_s * 1e3:.2f}",
        )
    return table
