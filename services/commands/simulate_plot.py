"""A comparison as a PNG: load, layouts over time, makespans. Needs matplotlib, the extra `plots`."""

from pathlib import Path
from typing import Any

from services.outputs import replace_file
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.simulate.comparison import WorkloadComparison
from splash_core.simulate.timeline import in_system, layout_shares

_COLOURS = dict(zip(Layout, ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377"), strict=True))


def write_plot(comparison: WorkloadComparison, path: Path) -> None:
    """Write the plot.

    Raises:
        ConfigError: matplotlib is not installed, or the name does not end in `.png`.
    """
    figure = new_figure(path)
    roles = [role.value for role, count in comparison.fleet.groups.items() if count]
    rows = figure.subplots(2 + len(roles), 1)
    end_s = max((times.finished_s for times in comparison.policy.ledger.finished), default=0.0)
    _draw_load(rows[0], comparison)
    for axes, role in zip(rows[1:-1], roles, strict=True):
        times, shares = layout_shares(comparison.policy.ledger, role, end_s)
        axes.stackplot(
            times,
            *shares.values(),
            step="post",
            labels=[layout.value for layout in shares],
            colors=[_COLOURS[layout] for layout in shares],
        )
        axes.set(title=f"{role} groups by layout, policy", ylabel="groups", xlim=(0, max(end_s, 1e-9)))
        axes.legend(loc="upper right")
    rows[-2].set_xlabel("simulated time, s")
    _draw_makespans(rows[-1], comparison)
    replace_file(path, lambda part: figure.savefig(part, format="png"))


def new_figure(path: Path) -> Any:
    """An empty figure that draws without a display."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {path}: plots are PNG files; let the name end in .png")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib; install it with `pip install 'splash[plots]'`") from error
    figure = Figure(figsize=(10, 11), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_load(axes: Any, comparison: WorkloadComparison) -> None:
    for name, summary, style in (
        ("policy", comparison.policy, "-"),
        ("oracle", comparison.oracle, "--"),
    ):
        axes.step(*in_system(summary.ledger), style, where="post", label=name)
    axes.set(title=f"{comparison.workload}: requests in the system", ylabel="requests")
    axes.margins(x=0)
    axes.legend(loc="upper right")


def _draw_makespans(axes: Any, comparison: WorkloadComparison) -> None:
    bars = {
        "policy": comparison.policy.makespan_s,
        **{layout.value: summary.makespan_s for layout, summary in comparison.fixed.items()},
        "oracle": comparison.oracle.makespan_s,
    }
    drawn = axes.barh(list(bars), list(bars.values()), color="#777777")
    axes.bar_label(drawn, fmt="%.1f")
    axes.invert_yaxis()
    axes.set(title=f"makespan, s; regret {comparison.regret:.1%}", xlabel="s")
