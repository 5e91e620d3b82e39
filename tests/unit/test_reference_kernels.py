"""The reference kernels against plain softmax attention, in fp64: tiles, masks, empty keys, merging."""

import pytest
import torch

from splash_core.kernels import reference
from splash_core.kernels.linear import linear
from splash_core.kernels.reference import attend_absorbed, attend_decode, attend_expanded, merge_by_lse

HEADS, NOPE, ROPE, VALUE, LATENT = 3, 5, 4, 6, 7
SCALE = 0.3


def _random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _plain(q_NHC: torch.Tensor, kv_KC: torch.Tensor, visible_NK: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("nhc,kc->nhk", q_NHC, kv_KC) * SCALE
    weights = scores.masked_fill(~visible_NK[:, None], float("-inf")).softmax(-1)
    return torch.einsum("nhk,kr->nhr", weights, kv_KC[:, :LATENT])


@pytest.mark.parametrize("tile", [1, 40, 1 << 24])
def test_chunks_in_tiles_equal_plain_attention(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "SCORE_TILE_ELEMENTS", tile)
    q, kv = _random(9, HEADS, LATENT + ROPE), _random(13, LATENT + ROPE)
    visible = torch.arange(13) <= torch.arange(4, 13)[:, None]
    out, lse = attend_absorbed(q, kv, visible, scale=SCALE, latent=LATENT)
    torch.testing.assert_close(out, _plain(q, kv, visible), rtol=0, atol=1e-12)
    scores = (torch.einsum("nhc,kc->nhk", q, kv) * SCALE).masked_fill(~visible[:, None], float("-inf"))
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tile", [1, 1 << 26])
@pytest.mark.parametrize("causal", [False, True])
def test_expanded_equals_absorbed(tile: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "EXPANDED_TILE_ELEMENTS", tile)
    rows, keys = 11, 11 if causal else 17
    q, kv = _random(rows, HEADS, NOPE + ROPE), _random(keys, LATENT + ROPE)
    kv_b = _random(HEADS, NOPE + VALUE, LATENT)
    visible = torch.arange(keys) <= torch.arange(keys - rows, keys)[:, None]
    expanded = attend_expanded(q, kv, kv_b, None if causal else visible, scale=SCALE, nope=NOPE)
    absorbed = torch.cat([torch.einsum("nhd,hdr->nhr", q[..., :NOPE], kv_b[:, :NOPE]), q[..., NOPE:]], -1)
    latent, _ = attend_absorbed(absorbed, kv, visible, scale=SCALE, latent=LATENT)
    expected = torch.einsum("nhr,hvr->nhv", latent, kv_b[:, NOPE:])
    torch.testing.assert_close(expanded, expected, rtol=0, atol=1e-11)


def test_decode_rows_see_their_own_pages_only() -> None:
    pages = _random(6, 2, LATENT + ROPE)
    slots = torch.tensor([[4, 1, 3], [2, 2, 2], [5, 5, 5]])
    lengths = torch.tensor([5, 2, 0])
    q = _random(3, HEADS, LATENT + ROPE)
    visible = torch.arange(6) < lengths[:, None]
    out, lse = attend_decode(q, pages, slots, visible, scale=SCALE, latent=LATENT)
    for row, length in enumerate(lengths[:2]):
        kv = pages[slots[row]].view(-1, LATENT + ROPE)[:length]
        expected = _plain(q[row : row + 1], kv, torch.ones(1, int(length), dtype=torch.bool))
        torch.testing.assert_close(out[row : row + 1], expected, rtol=0, atol=1e-12)
    assert (out[2] == 0).all()
    assert torch.isneginf(lse[2]).all()


def test_parts_merge_to_the_whole() -> None:
    q, kv = _random(5, HEADS, LATENT + ROPE), _random(12, LATENT + ROPE)
    whole, _ = attend_absorbed(q, kv, None, scale=SCALE, latent=LATENT)
    cuts = [kv[:4], kv[4:4], kv[4:]]  # one part holds no key
    parts = [attend_absorbed(q, part, None, scale=SCALE, latent=LATENT) for part in cuts]
    merged = merge_by_lse(torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts]))
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1, 2, 8, 9])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_the_same_in_both_orientations(rows: int, biased: bool) -> None:
    x, w = _random(rows, 12), _random(20, 12)
    bias = _random(20) if biased else None
    out = linear(x, w, bias)
    assert out.is_contiguous()
    torch.testing.assert_close(out, torch.nn.functional.linear(x, w, bias), rtol=0, atol=1e-12)
