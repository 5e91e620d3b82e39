"""What `tests/gpu/test_gpu_serving.py` proves of GPUs, on CPUs: one course, from weights of a seed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from splash_core.layout.layout import Layout
from tests.support.serving import Served, Tokens, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PAIRS = tuple(zip(Layout, [*list(Layout)[2:], *list(Layout)[:2]], strict=True))
"""Each layout once in each phase; the GPU's test takes all pairs."""


@pytest.fixture(scope="module")
def served(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Random weights, of which each rank makes its own part."""
    with serving(bare, tmp_path_factory.mktemp("s"), load_format="dummy", dummy_seed=5) as stack:
        yield stack


@pytest.fixture(scope="module")
def plain(served: Served) -> Tokens:
    return served.tokens()


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_tokens_of_random_weights_are_the_same_in_all_layouts_while_both_phases_switch(
    served: Served, plain: Tokens, prefill: Layout, decode: Layout
) -> None:
    assert len({tuple(tokens) for tokens in plain}) == len(plain)
    tokens, switches = served.tokens_while_switching(prefill, decode)
    assert tokens == plain
    assert switches >= 2
    served.until_empty()


def test_another_seed_is_another_model(bare: Path, tmp_path: Path, plain: Tokens) -> None:
    flags = {"load_format": "dummy", "dummy_seed": 6, "prefill_ranks": 1, "decode_ranks": 1}
    with serving(bare, tmp_path / "run", **flags) as other:
        assert other.tokens() != plain


def test_the_seed_and_not_the_ranks_makes_the_model(bare: Path, tmp_path: Path, plain: Tokens) -> None:
    flags = {"load_format": "dummy", "dummy_seed": 5, "prefill_ranks": 1, "decode_ranks": 1}
    with serving(bare, tmp_path / "run", **flags) as other:
        assert other.tokens() == plain
