"""Start-up parameters of a small group's ranks, as a service would write them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from splash_core.layout.layout import Layout
from splash_core.rpc.rank_config import RankConfig


def rank_config(checkpoint: Path, folder: Path, **changes: Any) -> RankConfig:
    """Of a group in DP with pages of 4 tokens, which meets in `folder`.

    Args:
        checkpoint: of the model.
        folder: for what the ranks share.
        changes: fields to set; `num_ranks` and `arena_bytes` at least.
    """
    config = RankConfig(
        group="g",
        engine="torch",
        checkpoint=str(checkpoint),
        model_name="tiny",
        fingerprint="",
        num_ranks=0,
        layout=Layout.DP,
        device="cpu",
        dtype="fp32",
        page_size=4,
        arena_bytes=0,
        staging_bytes=1 << 22,
        transfer_max_ctas=8,
        switch_layers_ahead=1,
        link="",
        rendezvous=f"file://{folder}/meet",
        log_dir=str(folder),
        log_format="plain",
        threads=1,
        start_timeout_s=120.0,
        step_timeout_s=60.0,
    )
    return replace(config, **changes)
