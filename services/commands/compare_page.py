"""A comparison with the paper as Markdown: what `splash plan --compare paper` prints."""

from services.bench.results_tables import markdown_table
from splash_core.policy.comparison import HANDOFF_BPS, MARGIN, ComparedPoint, PaperComparison


def comparison_page(comparison: PaperComparison) -> str:
    """The whole report; the same for the same model, devices and points."""
    sweeps, named = comparison.sweeps, comparison.named
    command = (
        f"splash plan --model {sweeps.model} --gpu {sweeps.gpu} --ranks {sweeps.ranks} --dtype fp8 "
        f"--fraction {sweeps.fraction:g} --compare paper"
    )
    agreeing, close = comparison.agreeing, comparison.close
    lines = [
        f"# {sweeps.model} on {sweeps.ranks} {sweeps.gpu.upper()}: predicted against the paper's winners",
        "",
        f"`{command}` prints this page; nothing on it is measured here, and nothing is fitted to the paper.",
        "",
        "A batch of B equal requests comes at once. Its time runs until the last of them has 1,024 tokens: "
        f"prefill (chunks of {comparison.chunk_tokens:,} rows, admission by each layout's pool), the link "
        f"({HANDOFF_BPS / 1e9:g} GB/s a rank) and decode (DP on {sweeps.decode_ranks} ranks; "
        f"{sweeps.decode_source}). Throughput is B · (input + 1,024) / time.",
        "",
        "    predicted      layouts, best first, each as a percentage of the best",
        "    winner behind  how far the measured winner is behind our choice, as we predict it",
        "    loss           how far our choice is below the measured best, where the text gives figures",
        "    not DOP, may   the text says no more of the point than that DOP did not lead",
        "",
        f"Of {len(comparison.points)} points the text names the winner of {len(named)}. Our choice is the "
        f"winner at {agreeing} ({agreeing / len(named):.0%}); at {close} ({close / len(named):.0%}) the "
        f"policy, with its margin of {MARGIN:.0%}, would not leave the winner.",
        "",
        _by_winner(comparison),
        markdown_table(
            {
                "sweep": lambda row: row["sweep"],
                "B": lambda row: str(row["batch"]),
                "input": lambda row: f"{row['input']:,}",
                "measured": lambda row: row["measured"],
                "predicted": lambda row: row["predicted"],
                "agrees": lambda row: row["agrees"],
                "winner behind": lambda row: row["behind"],
                "loss": lambda row: row["loss"],
            },
            [_row(point) for point in comparison.points],
        ),
    ]
    return "\n".join(lines)


def _by_winner(comparison: PaperComparison) -> str:
    rows = [
        {"layout": layout.value, "points": points, "agreeing": agreeing, "close": close}
        for layout, (points, agreeing, close) in comparison.by_winner().items()
    ]
    return markdown_table(
        {
            "measured winner": lambda row: row["layout"],
            "points": lambda row: str(row["points"]),
            "agreeing": lambda row: str(row["agreeing"]),
            "within the margin": lambda row: str(row["close"]),
        },
        rows,
    )


def _row(point: ComparedPoint) -> dict[str, object]:
    measured, best = point.measured, point.tokens_per_s[point.choice]
    open_ = measured.winner is None
    return {
        "sweep": measured.sweep,
        "batch": measured.batch,
        "input": measured.input_tokens,
        "measured": "not DOP" if measured.winner is None else measured.winner.value,
        "predicted": ", ".join(
            f"{layout.value} {rate / best:.1%}" for layout, rate in point.tokens_per_s.items()
        ),
        "agrees": "yes" if point.agrees and not open_ else "may" if point.agrees else "no",
        "behind": "" if open_ else f"{point.behind:.1%}",
        "loss": "" if point.loss is None else "–".join(dict.fromkeys(f"{part:.1%}" for part in point.loss)),
    }
