"""The engine on one GPU that T ranks share as threads: logits of every layout, and tokens over every switch.

Run with `python -m pytest -m gpu tests/gpu/test_engine_one_gpu.py`. The reference is transformers on the CPU.
What needs a GPU for each rank (NCCL, CUDA graphs, peers' memory) is in `test_engine.py`.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from splash_core.attention.context import RankContext
from splash_core.attention.flashinfer_library import FlashInferLibrary
from splash_core.attention.library_backend import LibraryAttention
from splash_core.dist.inprocess import run_ranks
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.bf16_switches import BF16, WORST, rows_over_switches, switched_divergence
from tests.support.churned_switches import Churn, ChurnedLife, check_bytes, check_replayed, check_tokens
from tests.support.comm_cases import Script, assert_matches, run_script, scripts
from tests.support.engine_cases import DIRECTIONS, FAMILIES, STANDARD_DIRECTIONS
from tests.support.group import Group
from tests.support.logit_engine import RowKey
from tests.support.one_device import OneDevice, SharingGroup, check_order, one_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

_STILL_CYCLES = 5_000_000
"""Some milliseconds: far longer than the host takes to enqueue a collective."""
GROUPS = [
    *(("tiny_v3", num_ranks, pulls) for num_ranks in (2, 4) for pulls in (False, True)),
    ("tiny_v2", 4, True),
]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_what_ranks_read_of_each_other_is_what_was_shown(num_ranks: int) -> None:
    check_order(one_gpu(), num_ranks, partial(torch.cuda._sleep, _STILL_CYCLES))


@settings(max_examples=30)
@given(script=scripts(4))
def test_collectives_equal_their_definition(script: Script) -> None:
    device = one_gpu()
    results = run_ranks(4, lambda comms: run_script(comms.compute, script, device), device=device)
    assert_matches(script, results)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference_on_cpu(
    name: str, num_ranks: int, layout: Layout, request: pytest.FixtureRequest
) -> None:
    OneDevice(one_gpu(), request.getfixturevalue(name), num_ranks, pulls=False).check_logits(layout)


@pytest.mark.parametrize("pulls", [False, True], ids=["exchanged", "pulled"])
@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_a_switch_brings_the_bytes_of_its_manifest(
    before: Layout, after: Layout, pulls: bool, tiny_v3: Path
) -> None:
    OneDevice(one_gpu(), tiny_v3, 4, pulls=pulls).check_switch(before, after, SwitchMode.OVERLAPPED)


@pytest.fixture(
    scope="module", params=GROUPS, ids=lambda of: f"{of[0]}-T{of[1]}-{'pulled' if of[2] else 'exchanged'}"
)
def group(request: pytest.FixtureRequest) -> Iterator[SharingGroup]:
    name, num_ranks, pulls = request.param
    device = OneDevice(one_gpu(), request.getfixturevalue(name), num_ranks, pulls=pulls)
    with device.group(page_size=4, ordinary=60) as sharing:
        yield sharing


@pytest.mark.parametrize("mode", list(SwitchMode))
@pytest.mark.parametrize(("before", "after"), STANDARD_DIRECTIONS)
def test_greedy_tokens_over_a_switch_equal_those_without(
    group: SharingGroup, before: Layout, after: Layout, mode: SwitchMode
) -> None:
    group.check_tokens(before, after, mode)


@pytest.mark.parametrize("pulls", [False, True], ids=["exchanged", "pulled"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_pages_in_borrowed_slots_survive_a_switch_that_needs_them(
    num_ranks: int, pulls: bool, tiny_v3: Path
) -> None:
    device = OneDevice(one_gpu(), tiny_v3, num_ranks, pulls=pulls)
    with device.group(page_size=1, ordinary=24) as group:
        group.check_spilled_pages()


@pytest.fixture(scope="module")
def recorded(tiny_v3: Path) -> Iterator[Group]:
    with OneDevice(one_gpu(), tiny_v3, 4, pulls=True).recorded_group() as group:
        yield group


@pytest.fixture(scope="module")
def unchurned(recorded: Group) -> dict[Layout, ChurnedLife]:
    """Without a switch."""
    return {layout: Churn(recorded, layout).run() for layout in STANDARD_LAYOUTS}


@pytest.mark.parametrize(("before", "after"), STANDARD_DIRECTIONS)
def test_requests_that_come_and_go_change_neither_tokens_nor_replays(
    recorded: Group, unchurned: dict[Layout, ChurnedLife], before: Layout, after: Layout
) -> None:
    """Recorded steps are launched again here; what they read is copied ahead beside them."""
    life = Churn(recorded, before, after, ahead=True).run()
    check_replayed(life)
    check_tokens(unchurned[before], life)
    check_bytes(life, recorded.arena)


# ------------------------------------------------------------------------------------------------ bf16


@pytest.fixture(scope="module")
def exact(wide_v2_lite: Path) -> dict[RowKey, torch.Tensor]:
    """One rank in fp32. FlashInfer compiles here first: ranks that did would not meet in time."""
    device = one_gpu()
    FlashInferLibrary(ModelSpec.from_checkpoint(wide_v2_lite), BF16, device)
    return rows_over_switches(wide_v2_lite, 1, Layout.DP, Layout.DP, device=device, dtype=torch.float32)


def with_flashinfer(ctx: RankContext) -> RankContext:
    assert isinstance(ctx.attention, LibraryAttention), "bf16 of these widths is FlashInfer's"
    return ctx


@pytest.mark.parametrize(("num_ranks", "pulls"), [(2, False), (4, True)])
@pytest.mark.parametrize(("before", "after"), list(combinations(Layout, 2)))
def test_bf16_rows_with_flashinfer_over_two_switches_are_right_to_rounding(
    exact: dict[RowKey, torch.Tensor],
    before: Layout,
    after: Layout,
    num_ranks: int,
    pulls: bool,
    wide_v2_lite: Path,
) -> None:
    rows = rows_over_switches(
        wide_v2_lite, num_ranks, before, after, device=one_gpu(), pulls=pulls, adapt=with_flashinfer
    )
    found = switched_divergence(rows, exact)
    assert found <= WORST, f"{before} → {after} → {before}, T={num_ranks}: KL {found:.2e}"
