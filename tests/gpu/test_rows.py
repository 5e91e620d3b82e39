"""Row-wise kernels and the router against plain torch."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from splash_core.dist.rows import sum_in_rank_order
from splash_core.kernels import rows
from splash_core.kernels.linear import per_head, tall
from splash_core.model.moe import _logits, _route_v2, _route_v3

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
DTYPES = [torch.bfloat16, torch.float32]
LIMITS = {torch.bfloat16: 1e-2, torch.float32: 1e-6}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(13)


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=CUDA, dtype=dtype)


def assert_close(got: Tensor, want: Tensor, dtype: torch.dtype, what: str) -> None:
    """`want` is in fp64; the largest error is relative to its largest value."""
    assert got.dtype is dtype
    assert got.shape == want.shape, f"{what}: {got.shape} for {want.shape}"
    if got.numel():
        error = ((got.double() - want).abs().max() / want.abs().max()).item()
        assert error <= LIMITS[dtype], f"{what}: relative error {error:.2e}, {dtype}, {tuple(want.shape)}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 77])
@pytest.mark.parametrize("width", [7168, 1536, 512, 48, 33])
def test_rms_norm(dtype: torch.dtype, num_rows: int, width: int) -> None:
    x_ND, w_D = randn(num_rows, width + 64, dtype=dtype)[:, 64:], randn(width, dtype=dtype)
    want = rows.rms_norm(x_ND.double(), w_D.double(), 1e-6)
    assert_close(rows.rms_norm(x_ND, w_D, 1e-6), want, dtype, "rms_norm")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 77])
@pytest.mark.parametrize("width", [7168, 48, 33])
def test_the_stream_is_added_to_and_normalised_at_once(dtype: torch.dtype, num_rows: int, width: int) -> None:
    h_ND, more_ND = randn(num_rows, width, dtype=dtype), randn(num_rows, width, dtype=dtype)
    w_D = randn(width, dtype=dtype)
    total_ND, normed_ND = rows.add_and_norm(h_ND, more_ND, w_D, 1e-6)
    assert torch.equal(total_ND, h_ND + more_ND)
    assert torch.equal(normed_ND, rows.rms_norm(total_ND, w_D, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("num_rows", "query"), [(0, 1536), (1, 1536), (77, 1536), (5, 33)])
def test_both_latents_of_one_product(
    dtype: torch.dtype, interleaved: bool, num_rows: int, query: int
) -> None:
    down_NX, w_q = randn(num_rows, query + 512 + 64, dtype=dtype), randn(query, dtype=dtype)
    w_r, angle = randn(512, dtype=dtype), 100 * torch.rand(num_rows, 32, device=CUDA)
    angles = angle.cos(), angle.sin()
    q_NQ, kv_NC = rows.norm_latents(down_NX, w_q, w_r, 1e-6, angles, interleaved=interleaved)
    assert q_NQ.is_contiguous()
    assert kv_NC.is_contiguous()
    assert_close(q_NQ, rows.rms_norm(down_NX[:, :query].double(), w_q.double(), 1e-6), dtype, "query")
    kv, wide = down_NX[:, query:].double(), (angles[0].double(), angles[1].double())
    want = rows.norm_and_rotate(kv, w_r.double(), 1e-6, wide, interleaved=interleaved)
    assert_close(kv_NC, want, dtype, "latent")
    joined = rows.norm_joined_latents(down_NX, w_q, w_r, 1e-6, angles, interleaved=interleaved)
    assert torch.equal(joined, torch.cat([q_NQ, kv_NC], dim=-1))


@pytest.mark.parametrize("num_rows", [1, 16, 300])
def test_a_router_in_bf16_gives_the_logits_of_one_in_fp32(num_rows: int) -> None:
    x_ND, gate_ED = randn(num_rows, 7168, dtype=torch.bfloat16), randn(256, 7168, dtype=torch.bfloat16)
    got = _logits(x_ND, gate_ED, torch.float32)
    want = x_ND.double() @ gate_ED.double().t()
    assert got.dtype is torch.float32
    plain = (x_ND.float() @ gate_ED.float().t() - want).abs().max().item()
    assert (got - want).abs().max().item() <= 4 * plain + 1e-6 * want.abs().max().item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angle_dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("num_rows", "heads", "start", "rope"), [(33, 128, 128, 64), (5, 3, 16, 8), (0, 4, 8, 8)]
)
def test_rotations(
    dtype: torch.dtype,
    angle_dtype: torch.dtype,
    interleaved: bool,
    num_rows: int,
    heads: int,
    start: int,
    rope: int,
) -> None:
    angle = 100 * torch.rand(num_rows, rope // 2, device=CUDA)
    angles = angle.cos().to(angle_dtype), angle.sin().to(angle_dtype)
    wide = angles[0].double(), angles[1].double()
    for _ in range(20):  # in place: a race would not show every time
        q_NHD = randn(num_rows, heads, start + rope, dtype=dtype)
        want = rows.rotate_tail(q_NHD.double(), wide, start=start, interleaved=interleaved)
        got = rows.rotate_tail(q_NHD, angles, start=start, interleaved=interleaved)
        assert_close(got, want, dtype, "rotate_tail")
    latent, w_r = randn(num_rows, 512 + rope + 5, dtype=dtype)[:, 5:], randn(512, dtype=dtype)
    want = rows.norm_and_rotate(latent.double(), w_r.double(), 1e-6, wide, interleaved=interleaved)
    got = rows.norm_and_rotate(latent, w_r, 1e-6, angles, interleaved=interleaved)
    assert_close(got, want, dtype, "norm_and_rotate")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 2048), (9, 18432), (5, 33), (0, 16)])
def test_silu_mul(dtype: torch.dtype, num_rows: int, width: int) -> None:
    gate_up = randn(num_rows, 2 * width, dtype=dtype)
    assert_close(rows.silu_mul(gate_up), rows.silu_mul(gate_up.double()), dtype, "silu_mul")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_products_per_head_land_in_place(dtype: torch.dtype, num_rows: int) -> None:
    x_NHI, w_HIO = randn(num_rows, 16, 192, dtype=dtype), randn(16, 192, 512, dtype=dtype)[:, :128]
    got = per_head(x_NHI[..., :128], w_HIO, tail=x_NHI[..., 128:])
    assert torch.equal(got[..., 512:], x_NHI[..., 128:])
    want = torch.einsum("nhi,hio->nho", x_NHI[..., :128].double(), w_HIO.double())
    if num_rows:
        error = (got[..., :512].double() - want).abs().max() / want.abs().max()
        assert error <= max(LIMITS[dtype], 1e-5), f"{error:.2e}"
    assert per_head(x_NHI[..., :128], w_HIO).shape == (num_rows, 16, 512)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("num_ranks", [2, 4, 8, 9])
@pytest.mark.parametrize("shape", [(4, 7168), (3, 5), (0, 8)])
def test_sums_over_ranks_have_the_bits_of_those_on_cpu(
    dtype: torch.dtype, num_ranks: int, shape: tuple[int, int]
) -> None:
    parts_NX = [randn(*shape, dtype=dtype) for _ in range(num_ranks)]
    got = sum_in_rank_order(parts_NX)
    assert torch.equal(got.cpu(), sum_in_rank_order([part.cpu() for part in parts_NX]))
    assert all(got.data_ptr() != part.data_ptr() for part in parts_NX if part.numel())


@pytest.mark.parametrize("num_rows", [1, 3, 16, 17, 64, 65, 0])
@pytest.mark.parametrize(("inner", "outputs"), [(16384, 7168), (8192, 256), (8256, 256), (512, 384)])
def test_products_of_few_rows_with_tall_matrices(num_rows: int, inner: int, outputs: int) -> None:
    x_NK = randn(num_rows, inner + 8, dtype=torch.bfloat16)[:, :inner]
    w_KO = randn(inner, outputs, dtype=torch.bfloat16)
    got = tall(x_NK, w_KO)
    assert_close(got, x_NK.double() @ w_KO.double(), torch.bfloat16, "tall")
    assert torch.equal(got, tall(x_NK, w_KO)), "the same rows, other bits"


@pytest.mark.parametrize(
    ("experts", "groups", "top_groups", "top_k"),
    [
        (16, 8, 4, 8),
        (12, 4, 2, 3),
        (12, 1, 1, 3),
        (256, 8, 4, 8),
        (384, 1, 1, 8),
        (8, 8, 3, 2),
        (24, 3, 2, 5),
    ],
)
@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize("num_rows", [1, 300])
def test_router_chooses_what_plain_torch_chooses(
    experts: int, groups: int, top_groups: int, top_k: int, sigmoid: bool, num_rows: int
) -> None:
    """Without ties: weights by expert are compared, so the order of choices does not matter."""
    from splash_core.kernels.triton_router import RouterRule, route  # Triton is only where GPUs are

    logits_NE = randn(num_rows, experts, dtype=torch.float32)
    bias_E = randn(experts, dtype=torch.float32) / 10 if sigmoid else None
    moe = SimpleNamespace(
        num_experts=experts,
        num_groups=groups,
        top_groups=top_groups,
        top_k=top_k,
        scale=2.5,
        normalize_top_k=sigmoid,
        group_limited=True,
    )
    if bias_E is None:
        want_ids, want_weights = _route_v2(logits_NE, moe)  # pyright: ignore[reportArgumentType]
    else:
        want_ids, want_weights = _route_v3(logits_NE, bias_E, moe)  # pyright: ignore[reportArgumentType]
    rule = RouterRule(
        sigmoid=sigmoid, groups=groups, top_groups=top_groups, top_k=top_k, normalize=sigmoid, scale=2.5
    )
    ids, weights = route(logits_NE, bias_E, rule)
    zeros = torch.zeros(num_rows, experts, device=CUDA)
    got, want = zeros.scatter(1, ids, weights), zeros.scatter(1, want_ids, want_weights)
    differ = (got - want).abs().amax(dim=1) > 1e-5
    where = differ.nonzero().flatten().tolist()[:5]
    assert not where, f"rows {where}: chose {ids[where]}, plain torch {want_ids[where]}"
