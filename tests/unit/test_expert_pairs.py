"""Routed experts without waiting for the device equal the loop over experts."""

import pytest
import torch
from torch import Tensor

from splash_core.kernels import expert_pairs
from splash_core.kernels.base import Experts
from splash_core.kernels.expert_pairs import (
    TorchPairs,
    dense_experts,
    grouped_experts,
    masked_experts,
    wants_dense,
)
from splash_core.kernels.torch_kernels import TorchKernels

NUM_EXPERTS, CHOICES, HIDDEN, WIDTH = 12, 3, 32, 16


def case(num_rows: int, first: int, local: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(num_rows)
    ids_NK = torch.rand(num_rows, NUM_EXPERTS, generator=generator).topk(CHOICES).indices
    values = [
        torch.randn(shape, generator=generator, dtype=torch.float64) / 4
        for shape in (
            (num_rows, HIDDEN),
            (num_rows, HIDDEN),
            (local, 2 * WIDTH, HIDDEN),
            (local, HIDDEN, WIDTH),
        )
    ]
    weights_NK = torch.rand(num_rows, CHOICES, generator=generator)
    out, x, gate_up, down = (value.to(dtype) for value in values)
    weights_NK = weights_NK.to(torch.promote_types(dtype, torch.float32))
    return out, x, ids_NK, weights_NK, gate_up, down, torch.tensor(first)


def held(first: int, gate_up: Tensor, down: Tensor) -> Experts:
    return Experts(first=first, num_in_layer=NUM_EXPERTS, gate_up_EXD=gate_up, down_EDI=down)


def expected(parts: tuple[Tensor, ...]) -> Tensor:
    """The loop, in fp64."""
    out, x, ids_NK, weights_NK, gate_up, down, first = parts
    result = out.double()
    experts = Experts(
        first=int(first), num_in_layer=NUM_EXPERTS, gate_up_EXD=gate_up.double(), down_EDI=down.double()
    )
    TorchKernels(torch.device("cpu")).moe_experts(result, x.double(), ids_NK, weights_NK.double(), experts)
    return result


@pytest.mark.parametrize("num_rows", [0, 1, 7, 40])
@pytest.mark.parametrize(("first", "local"), [(0, 12), (4, 4), (11, 1), (5, 0)])
def test_every_form_equals_the_loop(
    num_rows: int, first: int, local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_pairs, "ROWS_AT_ONCE", 16)
    parts = case(num_rows, first, local, torch.bfloat16)
    out, x, ids_NK, weights_NK, gate_up, down, _ = parts
    want = expected(parts)
    grouped_experts(
        out,
        x,
        ids_NK,
        weights_NK,
        Experts(first=first, num_in_layer=NUM_EXPERTS, gate_up_EXD=gate_up, down_EDI=down),
        TorchPairs(),
    )
    assert torch.allclose(out.double(), want, atol=0.02, rtol=0.02)
    out, x, ids_NK, weights_NK, gate_up, down, _ = case(num_rows, first, local, torch.bfloat16)
    dense_experts(out, x, ids_NK, weights_NK, held(first, gate_up, down), TorchPairs())
    assert torch.allclose(out.double(), want, atol=0.02, rtol=0.02)
    parts = case(num_rows, first, local, torch.float64)
    out, x, ids_NK, weights_NK, gate_up, down, _ = parts
    want = expected(parts)
    masked_experts(
        out,
        x,
        ids_NK,
        weights_NK,
        Experts(first=first, num_in_layer=NUM_EXPERTS, gate_up_EXD=gate_up, down_EDI=down),
    )
    assert torch.allclose(out, want, atol=1e-13, rtol=0)


def test_what_lies_beyond_the_local_pairs_is_never_read() -> None:
    """Products leave it as it was: here, NaN."""
    pairs = TorchPairs()
    ids_NK = torch.tensor([[0, 9], [9, 8], [1, 0]])
    places_NK, ends_E = pairs.order(ids_NK, 0, 2)
    assert ends_E.tolist() == [2, 3]
    assert ends_E.dtype is torch.int32
    assert places_NK[0, 0] == 0
    assert places_NK[2].tolist() == [2, 1]
    assert sorted(places_NK.flatten().tolist()) == list(range(6))
    y_PD = torch.full((6, 4), float("nan"))
    y_PD[:3] = torch.arange(3.0)[:, None]
    out_ND = torch.ones(3, 4)
    pairs.combine(out_ND, y_PD, places_NK, torch.full((3, 2), 0.5), ends_E)
    assert out_ND[:, 0].tolist() == [1.0, 1.0, 2.5]


def test_few_rows_that_want_most_experts_go_to_all_of_them() -> None:
    assert wants_dense(num_rows=2, choices=8, num_in_layer=16)
    assert wants_dense(num_rows=128, choices=8, num_in_layer=256)
    assert not wants_dense(num_rows=16, choices=8, num_in_layer=256), "most experts would be read for nothing"
    assert not wants_dense(num_rows=4096, choices=8, num_in_layer=16), "most products would be for nothing"
