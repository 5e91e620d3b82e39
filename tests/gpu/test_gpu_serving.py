"""Services on GPUs: prefill and decode on the same two GPUs, T = 2 each, tokens as on CPUs while both switch.

On a machine with one GPU each group has one rank there. Run with
`python -m pytest -m gpu tests/gpu/test_gpu_serving.py`. In fp32, where no sum's order decides a token.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from splash_core.layout.layout import Layout
from splash_core.units import GIB
from tests.support.gpus import NUM_GPUS
from tests.support.serving import Served, Tokens, serving

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

RANKS = min(max(NUM_GPUS, 1), 2)
GPUS = ",".join(map(str, range(RANKS)))
ON_GPUS: dict[str, Any] = {
    "device": "cuda",
    "prefill_ranks": RANKS,
    "decode_ranks": RANKS,
    "prefill_gpus": GPUS,
    "decode_gpus": GPUS,
    "graph_bytes": 8 * GIB,
    # The first step compiles kernels.
    "step_timeout_s": 300.0,
}


@pytest.fixture(scope="module")
def on_cpus(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    assert NUM_GPUS > 0, "torch sees no GPU"
    with serving(tiny_v3, tmp_path_factory.mktemp("c")) as stack:
        return stack.tokens()


@pytest.fixture(scope="module")
def on_gpus(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tiny_v3, tmp_path_factory.mktemp("g"), **ON_GPUS) as stack:
        stack.tokens()  # compiles kernels, for which no switch should wait
        yield stack


@pytest.mark.parametrize(("prefill", "decode"), list(product(Layout, Layout)))
def test_tokens_are_those_of_cpus_while_both_phases_switch(
    on_cpus: Tokens, on_gpus: Served, prefill: Layout, decode: Layout
) -> None:
    tokens, switches = on_gpus.tokens_while_switching(prefill, decode)
    assert tokens == on_cpus
    assert switches >= 2
    on_gpus.until_empty()


def test_random_weights_are_one_model_however_many_ranks(bare: Path, tmp_path: Path) -> None:
    seeded = ON_GPUS | {"load_format": "dummy", "dummy_seed": 5, "graphs": "off"}
    with serving(bare, tmp_path / "one", **seeded) as stack:
        plain = stack.tokens()
        tokens, _ = stack.tokens_while_switching(Layout.DP, Layout.DOP)
        assert tokens == plain
        stack.until_empty()
    alone = {"prefill_ranks": 1, "decode_ranks": 1, "prefill_gpus": "0", "decode_gpus": str(RANKS - 1)}
    with serving(bare, tmp_path / "other", **(seeded | alone)) as stack:
        assert stack.tokens() == plain
