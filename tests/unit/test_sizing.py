"""Default KV room: within free memory, never less than a page, never absurdly much."""

import dataclasses
from pathlib import Path

import pytest

from splash_core.config import GroupSettings
from splash_core.cost.footprint import Deployment, memory_account
from splash_core.cost.precision import named_precision
from splash_core.errors import ConfigError, Infeasible
from splash_core.layout.layout import Layout
from splash_core.layout.slots import page_bytes
from splash_core.leader.build import draw_blueprint
from splash_core.leader.host import memory_limit
from splash_core.leader.sizing import (
    MOST_BYTES,
    HostMemory,
    default_kv_bytes,
    gpu_kv_bytes,
    projection_bytes,
)
from splash_core.policy.snapshot import Phase
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import named_gpu
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import STAGING_PARTS
from splash_core.units import GIB

SPEC = named_spec("deepseek-v2-lite")


def _host(free_gib: float, *, ranks: int = 4, checkpoint_gib: float = 4) -> HostMemory:
    return HostMemory(
        free_bytes=int(free_gib * GIB),
        ranks=ranks,
        checkpoint_bytes=int(checkpoint_gib * GIB),
        stored_elem_bytes=2,
    )


@pytest.mark.parametrize("free_gib", [30, 64, 256])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_and_kv_of_all_ranks_fit_into_free_memory(free_gib: float, ranks: int) -> None:
    host = _host(free_gib, ranks=ranks)
    room = default_kv_bytes(SPEC, host, page_size=64, elem_bytes=4)
    page = page_bytes(SPEC, page_size=64, elem_bytes=4)
    assert page <= room <= MOST_BYTES
    if room > page:
        weights = 2 * host.checkpoint_bytes * 2 + ranks * projection_bytes(SPEC, elem_bytes=4)
        assert weights + ranks * room < host.free_bytes


def test_a_full_host_still_gets_one_page() -> None:
    page = page_bytes(SPEC, page_size=64, elem_bytes=4)
    assert default_kv_bytes(SPEC, _host(1), page_size=64, elem_bytes=4) == page


def test_projection_bytes_follow_the_shapes() -> None:
    # Q-B 2048 × 16·192, KV-B 512 × 16·256, O 16·128 × 2048 elements: 12 + 4 + 8 MiB a layer in bf16.
    assert projection_bytes(SPEC, elem_bytes=2) == 27 * (12 + 4 + 8) * (1 << 20)


def _deployment(ranks: int, fraction: float = 0.85) -> Deployment:
    gpu = named_gpu("h200")
    return Deployment(
        precision=named_precision("bf16"),
        num_ranks=ranks,
        memory_bytes=gpu.memory_bytes,
        fraction=fraction,
        page_size=64,
        chunk_tokens=8192,
        runtime_bytes=gpu.runtime_bytes,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_gpu_holds_weights_working_memory_staging_and_kv(ranks: int) -> None:
    deployment, region, staging = _deployment(ranks), 2 * GIB, GIB
    room = gpu_kv_bytes(SPEC, deployment, weights_region_bytes=region, staging_bytes=staging)
    account = memory_account(SPEC, deployment)
    budget = int(0.85 * deployment.memory_bytes)
    for layout in Layout:
        assert account.other_bytes[layout] + region + staging + room <= budget
    assert max(account.other_bytes.values()) + region + staging + room == budget
    half = gpu_kv_bytes(SPEC, _deployment(ranks, 0.4), weights_region_bytes=region, staging_bytes=staging)
    assert room - half == budget - int(0.4 * deployment.memory_bytes)


def test_a_gpu_that_weights_fill_is_refused_with_the_numbers() -> None:
    with pytest.raises(Infeasible, match=r"take .* GiB of .* GiB, .*larger --memory-fraction"):
        gpu_kv_bytes(
            named_spec("deepseek-v3"), _deployment(2), weights_region_bytes=60 * GIB, staging_bytes=GIB
        )


def test_on_cuda_a_group_sizes_its_pool_from_the_gpu(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), device="cuda", memory_fraction=0.1)
    arena = draw_blueprint(settings, Phase.DECODE).arena
    assert 5 * GIB < len(arena.ordinary) * arena.slot_bytes < 0.1 * 140 * GIB
    for wrong, words in (({"memory_fraction": 1.5}, "memory-fraction"), ({"gpu": "gtx"}, "h200")):
        with pytest.raises(ConfigError, match=words):
            draw_blueprint(dataclasses.replace(settings, **wrong), Phase.DECODE)


def test_staging_that_cannot_move_a_page_is_refused(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), kv_bytes=1 << 20, page_size=4)
    slot = draw_blueprint(settings, Phase.DECODE).arena.slot_bytes
    enough = dataclasses.replace(settings, staging_bytes=STAGING_PARTS * slot)
    assert draw_blueprint(enough, Phase.DECODE).scheduling.staging_bytes == slot
    with pytest.raises(Infeasible, match=rf"nearest feasible: --staging-bytes {STAGING_PARTS * slot}"):
        draw_blueprint(dataclasses.replace(enough, staging_bytes=STAGING_PARTS * slot - 1), Phase.DECODE)


@pytest.mark.parametrize(("device", "host_ranks"), [("cpu", 0), ("cpu", 6), ("cuda", 0)])
def test_more_kv_room_than_there_is_memory_is_refused_with_the_most_that_fits(
    tiny_v3: Path, device: str, host_ranks: int
) -> None:
    settings = GroupSettings(model=str(tiny_v3), device=device, host_ranks=host_ranks, kv_bytes=1 << 50)
    with pytest.raises(Infeasible, match="is more than there is memory") as raised:
        draw_blueprint(settings, Phase.DECODE)
    assert raised.value.nearest is not None
    flag, _, nearest = raised.value.nearest.partition(" ")
    assert flag == "--kv-bytes"
    # Not drawn: that would list millions of pages.
    page = page_bytes(
        ModelSpec.from_checkpoint(tiny_v3), page_size=64, elem_bytes=4 if device == "cpu" else 2
    )
    assert int(nearest) % page == 0
    memory = memory_limit() if device == "cpu" else named_gpu("h200").memory_bytes
    assert memory * 0.9 < int(nearest) * ((host_ranks or 2) if device == "cpu" else 1) < memory
