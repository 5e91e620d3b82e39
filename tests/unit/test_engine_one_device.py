"""Four ranks as threads on one device, here the CPU: what tests/gpu/test_engine_one_gpu.py does on a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splash_core.dist.order import CPU
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode
from tests.support.churned_switches import Churn, check_bytes, check_replayed, check_tokens
from tests.support.one_device import OneDevice, SharingGroup, check_order

RANKS = 4
SWITCHES = [
    (Layout.TP, Layout.CP, SwitchMode.BLOCKING),
    (Layout.DP, Layout.DOP_P, SwitchMode.OVERLAPPED),
    (Layout.DOP, Layout.TP, SwitchMode.PRECOPIED),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=[False, True], ids=["exchanged", "pulled"])
def on_cpu(request: pytest.FixtureRequest, tiny_v3: Path) -> OneDevice:
    return OneDevice(CPU, tiny_v3, RANKS, pulls=request.param)


@pytest.fixture(scope="module")
def group(on_cpu: OneDevice) -> Iterator[SharingGroup]:
    with on_cpu.group(page_size=4, ordinary=60) as sharing:
        yield sharing


def test_what_ranks_read_of_each_other_is_what_was_shown() -> None:
    check_order(CPU, RANKS, lambda: None)


def test_logits_equal_the_reference(tiny_v3: Path) -> None:
    OneDevice(CPU, tiny_v3, RANKS, pulls=False).check_logits(Layout.DOP)


def test_a_switch_brings_the_bytes_of_its_manifest(on_cpu: OneDevice) -> None:
    on_cpu.check_switch(Layout.DOP, Layout.CP, SwitchMode.OVERLAPPED)


@pytest.mark.parametrize(("before", "after", "mode"), SWITCHES)
def test_greedy_tokens_over_a_switch_equal_those_without(
    group: SharingGroup, before: Layout, after: Layout, mode: SwitchMode
) -> None:
    group.check_tokens(before, after, mode)


def test_pages_in_borrowed_slots_survive_a_switch_that_needs_them(tiny_v3: Path) -> None:
    with OneDevice(CPU, tiny_v3, RANKS, pulls=True).group(page_size=1, ordinary=24) as group:
        group.check_spilled_pages()


def test_requests_that_come_and_go_change_neither_tokens_nor_replays(tiny_v3: Path) -> None:
    with OneDevice(CPU, tiny_v3, RANKS, pulls=True).recorded_group() as group:
        unchurned = Churn(group, Layout.CP).run()
        life = Churn(group, Layout.CP, Layout.DOP, ahead=True).run()
        check_replayed(life)
        check_tokens(unchurned, life)
        check_bytes(life, group.arena)
