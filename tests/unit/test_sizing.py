"""Default KV room: within free memory, never less than a page, never absurdly much."""

import pytest

from splash_core.layout.slots import page_bytes
from splash_core.leader.sizing import MOST_BYTES, HostMemory, default_kv_bytes, projection_bytes
from splash_core.spec.catalogue import named_spec
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
