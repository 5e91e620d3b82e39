"""Cached rows that nobody computed: random, finite, and of the size that real ones have.

A latent row leaves a norm and a rope key a unit-variance projection, so both are close to N(0, 1). Invariant:
what a page holds depends on (seed, key) alone, so copies of a page are equal on all ranks.
"""

from collections.abc import Iterable, Sequence

import torch

from splash_core.ids import RankId
from splash_core.kv.arena import Arena
from splash_core.layout.ownership import PageCopy

_SEEDS = 1_000_003


def fill_pages(
    arena: Arena, pages: Iterable[tuple[int, Sequence[PageCopy]]], *, rank: RankId, seed: int
) -> None:
    """Write every page of which `rank` holds a copy.

    Args:
        arena: the rank's.
        pages: a key of each page, and its copies.
        rank: this rank.
        seed: of the rows.
    """
    pages_SLPC = arena.pages_SLPC
    generator = torch.Generator(pages_SLPC.device)
    with torch.inference_mode():
        for key, copies in pages:
            for copy in copies:
                if copy.rank == rank:
                    generator.manual_seed(seed * _SEEDS + key)
                    pages_SLPC[copy.slot].normal_(generator=generator)
