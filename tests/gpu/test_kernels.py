"""Every GPU kernel against its reference in plain torch, on odd sizes and at the end of a large arena."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from splash_core.kernels.base import Experts
from splash_core.kernels.cuda_kernels import CudaKernels
from splash_core.kernels.expert_pairs import TorchPairs
from splash_core.kernels.reference import merge_by_lse
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.kernels.uploads import PinnedUploads, StepBuffer
from splash_core.layout.ownership import NO_SLOT

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
DTYPES = [torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(scope="module")
def kernels() -> CudaKernels:
    return CudaKernels(PinnedUploads(CUDA))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=CUDA, dtype=dtype)


def assert_close(got: Tensor, want: Tensor, *, relative: float, what: str) -> None:
    """Largest error relative to the largest wanted value."""
    assert got.shape == want.shape, f"{what}: {got.shape} for {want.shape}"
    scale = want.double().abs().max().clamp_min(1e-6)
    error = ((got.double() - want.double()).abs().max() / scale).item()
    assert error <= relative, (
        f"{what}: relative error {error:.2e} > {relative:.0e}, shape {tuple(want.shape)}"
    )


# ------------------------------------------------------------------------------------------------ pages


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "width"), [(64, 576), (4, 48), (3, 7)])
def test_append_writes_rows_with_a_slot_and_nothing_else(
    kernels: CudaKernels, dtype: torch.dtype, page_size: int, width: int
) -> None:
    arena = randn(9, 3, page_size, width, dtype=dtype)
    want, truth = arena.clone(), TorchKernels(CUDA)
    for num_rows in (0, 1, 5, 9 * page_size):
        places = np.random.default_rng(num_rows).permutation(9 * page_size)[:num_rows]
        slots_N = np.where(np.arange(num_rows) % 3 == 1, NO_SLOT, places // page_size)
        offsets_N = places % page_size
        # Rows are part of wider ones, as in TP.
        rows_NC = randn(num_rows, width + 16, dtype=dtype)[:, 16:]
        kernels.append_rows(arena[:, 1], rows_NC, kernels.write_places(slots_N, offsets_N))
        truth.append_rows(want[:, 1], rows_NC, truth.write_places(slots_N, offsets_N))
        assert torch.equal(arena, want), f"{num_rows} rows of {width} into pages of {page_size}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 576), (4, 48), (3, 7)])
@pytest.mark.parametrize("num_pages", [0, 1, 7, 40])
def test_gather_and_scatter_move_layers_and_whole_pages(
    kernels: CudaKernels, dtype: torch.dtype, shape: tuple[int, int], num_pages: int
) -> None:
    arena = randn(50, 5, *shape, dtype=dtype)
    slots_M = torch.randperm(50, device=CUDA)[:num_pages]
    targets_M = torch.randperm(50, device=CUDA)[:num_pages]
    for view in (arena, arena[:, 0], arena[:, 4]):
        gathered = kernels.gather_pages(view, slots_M)
        assert gathered.is_contiguous()
        assert torch.equal(gathered, view[slots_M])
        want = arena.clone()
        want_view = want.as_strided(view.shape, view.stride(), view.storage_offset())
        want_view[targets_M] = gathered
        kernels.scatter_pages(view, targets_M, gathered)
        assert torch.equal(arena, want), f"{num_pages} pages of {tuple(view.shape)}"


def test_scatter_skips_what_has_no_slot(kernels: CudaKernels) -> None:
    arena = randn(4, 2, 8, 16)
    want = arena.clone()
    values = randn(3, 8, 16)
    kernels.scatter_pages(arena[:, 1], torch.tensor([2, NO_SLOT, 0], device=CUDA), values)
    want[2, 1], want[0, 1] = values[0], values[2]
    assert torch.equal(arena, want)


@pytest.fixture(scope="module")
def large_arena() -> Iterator[Tensor]:
    """20 GB of pages of DeepSeek-V3's shape: offsets beyond 2³³ elements."""
    layers, page_size, width = 61, 64, 576
    slots = 20 * 10**9 // (layers * page_size * width * 2)
    yield torch.zeros(slots, layers, page_size, width, dtype=torch.bfloat16, device=CUDA)
    torch.cuda.empty_cache()


def test_the_highest_slots_of_a_large_arena(kernels: CudaKernels, large_arena: Tensor) -> None:
    slots = large_arena.shape[0]
    some_M = torch.tensor([slots - 1, 0, slots - 3], device=CUDA)
    pages = randn(3, *large_arena.shape[1:])
    kernels.scatter_pages(large_arena, some_M, pages)
    assert torch.equal(kernels.gather_pages(large_arena, some_M), pages)
    assert torch.equal(large_arena[slots - 1], pages[0])
    for layer in (0, 60):
        view = large_arena[:, layer]
        assert torch.equal(kernels.gather_pages(view, some_M), pages[:, layer])
        rows_NC = randn(2, 576)
        places = kernels.write_places(np.array([slots - 1, slots - 2]), np.array([63, 0]))
        kernels.append_rows(view, rows_NC, places)
        assert torch.equal(large_arena[slots - 1, layer, 63], rows_NC[0])
        assert torch.equal(large_arena[slots - 2, layer, 0], rows_NC[1])
        assert large_arena[slots - 2, layer, 1:].abs().max() == 0


# -------------------------------------------------------------------------------------------------- lse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 128), (33, 16, 128), (5, 3, 20), (0, 4, 128)])
def test_merge_equals_the_reference(
    kernels: CudaKernels, dtype: torch.dtype, parts: int, rows: int, heads: int, width: int
) -> None:
    out = randn(parts, rows, heads, width, dtype=dtype)
    lse = 4 * randn(parts, rows, heads, dtype=torch.float32)
    unseen = torch.rand(parts, rows, heads, device=CUDA) < 0.3
    unseen[:, :1] = True
    lse = lse.masked_fill(unseen, float("-inf"))
    out = out.masked_fill(unseen[..., None], 0.0)
    got = kernels.merge_by_lse(out, lse)
    assert got.dtype is dtype
    if rows:
        want = merge_by_lse(out.double(), lse.double())
        assert_close(got, want, relative=1e-2 if dtype is torch.bfloat16 else 1e-6, what="merge")
        assert (got[0] == 0).all(), "a row that no part saw"


# -------------------------------------------------------------------------------------------------- moe


def choices(num_rows: int, num_experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    ids_NK = torch.rand(num_rows, num_experts, device=CUDA).topk(top_k).indices
    return ids_NK, torch.rand(num_rows, top_k, device=CUDA)


@pytest.mark.parametrize(("num_rows", "top_k", "num_experts"), [(1, 1, 2), (7, 3, 16), (300, 8, 256)])
@pytest.mark.parametrize("rank", [0, 1])
def test_pairs_equal_plain_torch(
    kernels: CudaKernels, num_rows: int, top_k: int, num_experts: int, rank: int
) -> None:
    truth, pairs = TorchPairs(), kernels._pairs
    ids_NK, weights_NK = choices(num_rows, num_experts, top_k)
    local = num_experts // 2
    places_NK, ends_E = pairs.order(ids_NK, rank * local, local)
    want_places, want_ends = truth.order(ids_NK, rank * local, local)
    assert torch.equal(ends_E, want_ends), f"{ends_E.tolist()} for {want_ends.tolist()}"
    assert torch.equal(places_NK.long(), want_places)
    num_local = int(ends_E[-1])
    x_ND = randn(num_rows, 2056)
    spread = pairs.spread(x_ND, places_NK, ends_E)
    assert torch.equal(spread[:num_local], truth.spread(x_ND, want_places, want_ends)[:num_local])
    gate_up = randn(num_rows * top_k, 2 * 136)
    got = pairs.silu_mul(gate_up, ends_E)[:num_local]
    if num_local:
        assert_close(got, truth.silu_mul(gate_up.double(), ends_E)[:num_local], relative=1e-2, what="silu")
    y_PD = randn(num_rows * top_k, 2056)
    y_PD[num_local:] = float("nan")
    out_ND = randn(num_rows, 2056)
    want = out_ND.double()
    truth.combine(want, y_PD.double(), want_places, weights_NK.double(), want_ends)
    pairs.combine(out_ND, y_PD, places_NK, weights_NK, ends_E)
    assert_close(out_ND, want, relative=1e-2, what="combine")


@pytest.mark.parametrize(
    ("num_rows", "hidden", "width", "num_experts", "top_k"),
    [
        (1, 64, 32, 8, 2),
        (5, 256, 64, 16, 4),
        (64, 7168, 2048, 16, 8),
        (130, 7168, 2048, 16, 8),
        (9000, 256, 128, 64, 8),
        (3, 65, 33, 4, 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_experts_equal_the_loop_in_fp64(
    kernels: CudaKernels,
    num_rows: int,
    hidden: int,
    width: int,
    num_experts: int,
    top_k: int,
    dtype: torch.dtype,
) -> None:
    ids_NK, weights_NK = choices(num_rows, num_experts, top_k)
    x_ND, out_ND = randn(num_rows, hidden, dtype=dtype), randn(num_rows, hidden, dtype=dtype)
    for first, local in ((0, num_experts), (num_experts // 2, num_experts // 4), (1, 0)):
        gate_up = randn(local, 2 * width, hidden, dtype=dtype) / hidden**0.5
        down = randn(local, hidden, width, dtype=dtype) / width**0.5
        got, want = out_ND.clone(), out_ND.double()
        experts = Experts(first=first, num_in_layer=num_experts, gate_up_EXD=gate_up, down_EDI=down)
        kernels.moe_experts(got, x_ND, ids_NK, weights_NK, experts)
        wide = Experts(
            first=first, num_in_layer=num_experts, gate_up_EXD=gate_up.double(), down_EDI=down.double()
        )
        TorchKernels(CUDA).moe_experts(want, x_ND.double(), ids_NK, weights_NK.double(), wide)
        limit = 1e-2 if dtype is torch.bfloat16 else 1e-5
        assert_close(got, want, relative=limit, what=f"experts {first}+{local} of {num_experts}, {dtype}")


# ------------------------------------------------------------------------------------------------ graphs


def test_a_graph_replays_appends_and_experts_on_new_indices() -> None:
    """Nothing waits for the device, and a step's indices are read where the buffer puts them."""
    buffer = StepBuffer(CUDA, 1 << 16)
    kernels = CudaKernels(buffer)
    arena, rows_NC = torch.zeros(6, 2, 4, 16, device=CUDA), randn(3, 16, dtype=torch.float32)
    x_ND, out_ND = randn(3, 64), torch.zeros(3, 64, dtype=torch.bfloat16, device=CUDA)
    experts = Experts(
        first=2, num_in_layer=8, gate_up_EXD=randn(2, 64, 64) / 8, down_EDI=randn(2, 64, 32) / 8
    )
    weights_NK = torch.rand(3, 2, device=CUDA)

    def step(slots: list[int], ids: list[list[int]]) -> tuple:
        buffer.begin()
        places = kernels.write_places(np.array(slots), np.array([0, 1, 2]))
        ids_NK = kernels.upload(np.array(ids))
        buffer.commit()
        return places, ids_NK

    def compute(places: object, ids_NK: Tensor) -> None:
        kernels.append_rows(arena[:, 1], rows_NC, places)  # pyright: ignore[reportArgumentType]
        kernels.moe_experts(out_ND, x_ND, ids_NK, weights_NK, experts)

    captured = step([0, NO_SLOT, 1], [[2, 3], [0, 1], [3, 0]])
    with torch.inference_mode():
        compute(*captured)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute(*captured)
        for slots, ids in (
            ([5, 4, NO_SLOT], [[2, 0], [3, 2], [0, 1]]),
            ([NO_SLOT, 0, 3], [[3, 1], [0, 1], [2, 3]]),
        ):
            arena.zero_()
            out_ND.zero_()
            step(slots, ids)
            graph.replay()
            want = torch.zeros(3, 64, dtype=torch.float64, device=CUDA)
            wide = Experts(
                first=2,
                num_in_layer=8,
                gate_up_EXD=experts.gate_up_EXD.double(),
                down_EDI=experts.down_EDI.double(),
            )
            TorchKernels(CUDA).moe_experts(
                want, x_ND.double(), torch.tensor(ids, device=CUDA), weights_NK.double(), wide
            )
            assert_close(out_ND, want, relative=1e-2, what=f"replayed experts {ids}")
            for row, slot in enumerate(slots):
                if slot != NO_SLOT:
                    assert torch.equal(arena[slot, 1, row], rows_NC[row])
            assert int((arena != 0).any(dim=-1).sum()) == sum(slot != NO_SLOT for slot in slots)


def test_no_kernel_waits_for_the_device(kernels: CudaKernels) -> None:
    ids_NK, weights_NK = choices(2000, 64, 8)  # more pairs than are counted: they are sorted
    x_ND, out_ND = randn(2000, 256), randn(2000, 256)
    experts = Experts(first=8, num_in_layer=32, gate_up_EXD=randn(16, 256, 256), down_EDI=randn(16, 256, 128))
    arena, slots_M = randn(8, 2, 4, 16), torch.tensor([3, 1], device=CUDA)
    out, lse = randn(2, 5, 4, 128), randn(2, 5, 4, dtype=torch.float32)

    def all_of_them() -> None:
        kernels.moe_experts(out_ND, x_ND, ids_NK, weights_NK, experts)
        kernels.moe_experts(out_ND.float(), x_ND.float(), ids_NK, weights_NK, wide)
        kernels.scatter_pages(arena[:, 0], slots_M, kernels.gather_pages(arena[:, 1], slots_M))
        kernels.merge_by_lse(out, lse)

    wide = Experts(
        first=8, num_in_layer=32, gate_up_EXD=experts.gate_up_EXD.float(), down_EDI=experts.down_EDI.float()
    )
    all_of_them()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_of_them()
    finally:
        torch.cuda.set_sync_debug_mode("default")
