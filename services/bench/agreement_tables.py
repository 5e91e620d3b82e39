"""Tables of an agreement document: pairs of layouts beside the yardstick, and what was compared."""

from services.bench.results_tables import Row, markdown_table, number


def agreement_tables(rows: list[Row]) -> str:
    """All tables of one document; each only where it has rows."""
    pairs = [row for row in rows if row["what"] == "layout"]
    itself = [row for row in rows if row["what"] == "batch"]
    distributions = [row for row in rows if row["what"] == "distribution"]
    tables = [
        table(some) for table, some in ((_pairs, pairs), (_itself, itself), (_spread, distributions)) if some
    ]
    return "\n".join(tables)


def _pairs(rows: list[Row]) -> str:
    return markdown_table(
        {
            "layouts": lambda row: f"{row['a']}, {row['b']}",
            "B": lambda row: number(row["a_batch"]),
            "positions": lambda row: number(row["positions"]),
            "agreement": _agreement,
            "yardstick": lambda row: f"{row['yardstick_agreement']:.2%}",
            "points below": lambda row: f"{row['points_below']:+.2f}, {'met' if row['met'] else 'missed'}",
            "KL": lambda row: f"{row['kl_mean']:.3g}",
            "yardstick KL": lambda row: f"{row['yardstick_kl']:.3g}",
            "KL p99": lambda row: f"{row['kl_p99']:.3g}",
            "crossed": lambda row: f"{row['widest_margin_crossed']:.3g}",
        },
        rows,
    )


def _itself(rows: list[Row]) -> str:
    return markdown_table(
        {
            "yardstick": lambda row: f"{row['a']}, B {row['a_batch']} and {row['b_batch']}",
            "positions": lambda row: number(row["positions"]),
            "agreement": _agreement,
            "KL": lambda row: f"{row['kl_mean']:.3g}",
            "KL p99": lambda row: f"{row['kl_p99']:.3g}",
            "crossed": lambda row: f"{row['widest_margin_crossed']:.3g}",
        },
        rows,
    )


def _spread(rows: list[Row]) -> str:
    return markdown_table(
        {
            "distribution": lambda row: f"{row['a']}, B {row['a_batch']}",
            "margin p10": lambda row: f"{row['margin_p10']:.3g}",
            "p50": lambda row: f"{row['margin_p50']:.3g}",
            "p90": lambda row: f"{row['margin_p90']:.3g}",
            "ties": lambda row: f"{row['ties']:.2%}",
            "entropy": lambda row: f"{row['entropy_p50']:.2f}",
            "deviation": lambda row: f"{row['logit_deviation']:.2f}",
        },
        rows,
    )


def _agreement(row: Row) -> str:
    return f"{row['agreement']:.2%} ± {100 * row['agreement_error']:.2f}"
