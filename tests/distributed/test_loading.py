"""A rank that loads as a service's does records its decode steps, within the memory that is set aside."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from splash_core.engine.loading import loaded_engine
from splash_core.errors import ConfigError
from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import Layout
from splash_core.rpc.rank_config import RankConfig
from splash_core.scheduling.buckets import decode_buckets
from splash_core.spec.model import ModelSpec
from tests.oracle import hf_generate_greedy
from tests.support.gpus import run_to_the_end
from tests.support.group import arena_with
from tests.support.plans import PlanBuilder
from tests.support.rank_configs import rank_config

RANKS = 2
PROMPT = [7, 20, 33, 46, 59, 72]
NUM_TOKENS = 4


def _config(checkpoint: Path, folder: Path, arena_bytes: int) -> RankConfig:
    return rank_config(
        checkpoint,
        folder,
        num_ranks=RANKS,
        arena_bytes=arena_bytes,
        graph_layouts=(Layout.DP, Layout.DOP),
        graph_buckets=decode_buckets(3, RANKS),
        graph_bytes=1 << 30,
    )


def _decoded(
    rank: int, num_ranks: int, checkpoint: Path, folder: Path, text: list[int]
) -> tuple[list[int], dict[str, int]]:
    """What this rank draws along a text that is given, and how often recorded steps were replayed."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=4, ordinary=20)
    config = _config(checkpoint, folder, arena.arena_bytes)
    with loaded_engine(
        config, RankId(rank), memory=None, spec=spec, arena=arena, progress=lambda done, total: None
    ) as engine:
        builder = PlanBuilder(arena, Layout.DP)
        seq = builder.start(PROMPT)
        tokens = [token.token for token in engine.step(builder.step({seq: len(PROMPT)})).tokens]
        for end in range(len(PROMPT) + 1, len(text)):
            # Only the rank that owns the sequence draws, so the others cannot tell what comes next.
            builder.sequences[SeqId(0)].tokens = text[:end]
            tokens += [token.token for token in engine.step(builder.step({seq: 1})).tokens]
        assert engine.graphs is not None
        replays: Counter[str] = Counter()
        for (layout, bucket), count in engine.graphs.replays.items():
            replays[f"{layout} {bucket}"] += count
        return tokens, dict(replays)


def test_a_rank_replays_what_it_recorded_when_it_loaded(tiny_v3: Path, tmp_path: Path) -> None:
    expected = hf_generate_greedy(tiny_v3, PROMPT, NUM_TOKENS)
    answers = run_to_the_end(_decoded, RANKS, tiny_v3, tmp_path, [*PROMPT, *expected])
    assert [token for tokens, _ in answers for token in tokens] == expected
    assert [replays for _, replays in answers] == [{"DP 1": NUM_TOKENS - 1}] * RANKS


def _refused(rank: int, num_ranks: int, checkpoint: Path, folder: Path) -> str:
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=4, ordinary=20)
    config = dataclasses.replace(_config(checkpoint, folder, arena.arena_bytes), graph_bytes=100)
    with (
        pytest.raises(ConfigError) as raised,
        loaded_engine(
            config, RankId(rank), memory=None, spec=spec, arena=arena, progress=lambda done, total: None
        ),
    ):
        raise AssertionError("it must not load")
    return str(raised.value)


def test_recordings_that_take_more_than_is_set_aside_end_the_start(tiny_v3: Path, tmp_path: Path) -> None:
    for message in run_to_the_end(_refused, RANKS, tiny_v3, tmp_path):
        assert "for 1/2/3 rows a rank take" in message
        assert "(DP " in message
        assert "of the 100 B that --graph-bytes sets aside" in message
