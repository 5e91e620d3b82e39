import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from splash_core.errors import InvariantBroken
from splash_core.model.adjust import SampleRow
from splash_core.model.logprobs import start_logprobs
from splash_core.model.noise import gumbel, row_key, uniform
from splash_core.model.sampler import Sampled, draw
from splash_core.spec.request import SamplingParams

VOCAB = 37
NOISE_OF_TOKENS_0_1_50000 = [0.39657686238, 0.648128820117, 0.299375040125]


def logits(num: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return 2 * torch.randn(num, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def row(
    position: int = 5, prompt: Sequence[int] = (1, 2, 3), output: Sequence[int] = (4, 4), **params: Any
) -> SampleRow:
    return SampleRow(params=SamplingParams(**params), position=position, prompt=prompt, output=output)


def sample(values: Tensor, rows: Sequence[SampleRow]) -> Sampled:
    return draw(values, rows).read()


def reference_token(values: list[float], item: SampleRow) -> int:
    """The sampler, spelt out slowly over Python floats."""
    params, vocab = item.params, len(values)
    values = list(values)
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in set(item.prompt) | set(item.output):
        value, penalty = values[token], params.repetition_penalty
        values[token] = value / penalty if value > 0 else value * penalty
    for token, count in Counter(item.output).items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    if len(item.output) < params.min_tokens:
        for token in params.stop_token_ids:
            values[token] = -math.inf
    if params.temperature == 0:
        return values.index(max(values))
    scaled = {token: value / params.temperature for token, value in enumerate(values)}
    if params.top_k:
        floor = sorted(scaled.values(), reverse=True)[: params.top_k][-1]
        scaled = {token: value for token, value in scaled.items() if value >= floor}
    if params.top_p < 1:
        total = math.fsum(math.exp(value) for value in scaled.values())
        kept, mass = [], 0.0
        for value in sorted(scaled.values(), reverse=True):
            kept.append(value)
            mass += math.exp(value) / total
            if mass >= params.top_p:
                break
        scaled = {token: value for token, value in scaled.items() if value >= kept[-1]}
    if params.min_p:
        floor = max(scaled.values()) + math.log(params.min_p)
        scaled = {token: value for token, value in scaled.items() if value >= floor}
    noise = gumbel(row_key(params.seed, item.position), torch.arange(vocab), torch.float64).tolist()
    return max(scaled, key=lambda token: scaled[token] + noise[token])


tokens_strategy = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@st.composite
def sampling_rows(draw: st.DrawFn) -> SampleRow:
    output = draw(tokens_strategy)
    max_tokens = 16
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 5, VOCAB, 100])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.3, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.1, 1.0])),
        seed=draw(st.integers(0, 2**63 - 1)),
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        logit_bias=tuple(
            draw(
                st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 3.0]), max_size=3)
            ).items()
        ),
        max_tokens=max_tokens,
        min_tokens=draw(st.sampled_from([0, 3, max_tokens])),
        stop_token_ids=tuple(draw(tokens_strategy)),
    )
    return SampleRow(
        params=params, position=draw(st.integers(0, 10_000)), prompt=draw(tokens_strategy), output=output
    )


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(sampling_rows(), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_every_feature_equals_the_slow_reference(rows: list[SampleRow], seed: int) -> None:
    values = logits(len(rows), seed)
    before = values.clone()
    got = sample(values, rows).tokens
    assert list(got) == [
        reference_token(line, item) for line, item in zip(values.tolist(), rows, strict=True)
    ]
    assert torch.equal(values, before)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(sampling_rows(), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_a_row_does_not_see_its_batch(rows: list[SampleRow], seed: int) -> None:
    values = logits(len(rows), seed)
    together = sample(values, rows).tokens
    order = list(reversed(range(len(rows))))
    backwards = sample(values[order], [rows[index] for index in order]).tokens
    alone = [sample(values[index : index + 1], [item]).tokens[0] for index, item in enumerate(rows)]
    assert list(together) == alone == list(reversed(backwards))


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    values = torch.zeros(2, VOCAB)
    values[1, [30, 9, 20]] = 1.0
    assert sample(values, [row(temperature=0.0), row(temperature=0.0)]).tokens == (0, 9)
    biased = row(temperature=0.0, logit_bias=((12, 1.0), (9, -1.0)))
    assert sample(values[1:], [biased]).tokens == (12,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shift", [-50.0, 0.0, 50.0])
@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-39, 1e-40, 1e-308, 5e-324])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 3, "top_p": 0.9, "min_p": 0.1}])
def test_a_temperature_whose_division_overflows_is_greedy(
    dtype: torch.dtype, shift: float, temperature: float, cuts: dict[str, Any]
) -> None:
    values = (logits(3, seed=8) + shift).to(dtype)
    # A row whose best logit is 0 has no quotient that overflows upwards.
    values[2] -= values[2].max()
    drawn = sample(values, [row(seed=seed, temperature=temperature, **cuts) for seed in range(3)])
    assert drawn.tokens == sample(values, [row(temperature=0.0)] * 3).tokens


def test_tied_candidates_stay_together() -> None:
    values = torch.zeros(1, VOCAB)
    draws = {sample(values, [row(position=position, top_k=2)]).tokens[0] for position in range(400)}
    assert len(draws) > 30


def draws(values: Tensor, count: int, **params: Any) -> Counter[int]:
    rows = [row(position=position, seed=11, **params) for position in range(count)]
    return Counter(sample(values.expand(count, -1), rows).tokens)


def chi_square(counts: Counter[int], probabilities: dict[int, float]) -> float:
    total = sum(counts.values())
    return sum((counts[token] - total * p) ** 2 / (total * p) for token, p in probabilities.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_the_softmax(dtype: torch.dtype) -> None:
    values = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5, 1.5]], dtype=dtype)
    expected = dict(enumerate(values[0].double().softmax(0).tolist()))
    # 5 degrees of freedom: 20.5 is passed by one in a thousand; the seed is fixed.
    assert chi_square(draws(values, 2500), expected) < 20.5
    warm = dict(enumerate((values[0].double() / 0.5).softmax(0).tolist()))
    assert chi_square(draws(values, 2500, temperature=0.5), warm) < 20.5


def test_draws_after_cuts_follow_the_renormalised_softmax() -> None:
    values = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5, 1.5]])
    counts = draws(values, 2000, top_k=3)
    assert set(counts) == {0, 1, 5}
    mass = math.exp(2.0) + math.exp(1.5) + math.exp(1.0)
    expected = {0: math.exp(2.0) / mass, 5: math.exp(1.5) / mass, 1: math.exp(1.0) / mass}
    assert chi_square(counts, expected) < 13.8
    assert set(draws(values, 300, top_p=0.6)) == {0, 5}
    assert set(draws(values, 300, min_p=0.3)) == {0, 5, 1}


def test_top_p_over_a_flat_vocabulary_looks_beyond_the_first_cut() -> None:
    values = logits(1, seed=3, vocab=5000) * 0.01
    item = row(top_p=0.9)
    picked = {sample(values, [row(position=position, top_p=0.9)]).tokens[0] for position in range(300)}
    order = values[0].argsort(descending=True).tolist()
    ranks = [order.index(token) for token in picked]
    assert 1024 < max(ranks) <= 4600
    assert sample(values, [item]).tokens[0] == reference_token(values[0].tolist(), item)


def test_noise_depends_on_seed_position_and_token_only() -> None:
    ids = torch.arange(1000)
    base = uniform(row_key(3, 9), ids, torch.float64)
    assert torch.equal(base[ids[500:]], uniform(row_key(3, 9), ids[500:], torch.float64))
    for other in (row_key(4, 9), row_key(3, 10), row_key(9, 3)):
        assert float((uniform(other, ids, torch.float64) - base).abs().min()) > 0
        assert (
            abs(float(torch.corrcoef(torch.stack((base, uniform(other, ids, torch.float64))))[0, 1])) < 0.12
        )
    # Fixed for ever: a resumed or re-routed request must see the noise that it saw before.
    assert row_key(1, 2) == row_key(1, 2)
    assert [
        round(value, 12)
        for value in uniform(row_key(1, 2), torch.tensor([0, 1, 50_000]), torch.float64).tolist()
    ] == NOISE_OF_TOKENS_0_1_50000


def test_noise_is_uniform_and_never_infinite() -> None:
    ids = torch.arange(200_000)
    for dtype in (torch.float32, torch.float64):
        values = uniform(row_key(0, 0), ids, dtype)
        assert 0 < float(values.min()) < 1e-4
        assert 1 - 1e-4 < float(values.max()) < 1
        histogram = torch.histc(values, bins=100, min=0, max=1)
        assert float(((histogram - 2000) ** 2 / 2000).sum()) < 150
        assert bool(gumbel(row_key(0, 0), ids, dtype).isfinite().all())


def test_extreme_seeds_are_accepted() -> None:
    for seed in (0, -1, 2**63 - 1, -(2**63), 2**64 - 1):
        assert -(2**63) <= row_key(seed, 2**31) < 2**63
        assert 0 <= sample(logits(1), [row(seed=seed)]).tokens[0] < VOCAB


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    values = logits(3)
    rows = [
        row(temperature=0.0, logprobs=2, logit_bias=((7, 50.0),)),
        row(temperature=0.0),
        row(temperature=0.7, logprobs=0, top_k=3),
    ]
    got: Sampled = sample(values, rows)
    want = torch.log_softmax(values, dim=-1)
    first, second, third = got.logprobs
    assert got.tokens[0] == 7
    assert first is not None
    assert first.token == 7
    assert first.logprob == pytest.approx(float(want[0, 7]), abs=1e-12)
    best = want[0].topk(2)
    assert [token for token, _ in first.top] == best.indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(best.values.tolist(), abs=1e-12)
    assert second is None
    assert third is not None
    assert third.top == ()
    assert third.logprob == pytest.approx(float(want[2, got.tokens[2]]), abs=1e-12)


def test_prompt_logprobs() -> None:
    values = logits(4)
    tokens = torch.tensor([3, 0, 36, 8])
    entries = start_logprobs(values, tokens, 2).read([2, 2, 2, 2])
    want = torch.log_softmax(values, dim=-1)
    assert [entry.token for entry in entries] == [3, 0, 36, 8]
    assert [entry.logprob for entry in entries] == pytest.approx(
        [float(want[index, token]) for index, token in enumerate([3, 0, 36, 8])], abs=1e-12
    )
    assert all(len(entry.top) == 2 for entry in entries)
    assert len(start_logprobs(values, tokens, 100).read([100, 2, 0, 1])[0].top) == VOCAB
    assert [len(entry.top) for entry in start_logprobs(values, tokens, 3).read([3, 2, 0, 1])] == [3, 2, 0, 1]
    assert start_logprobs(values[:0], tokens[:0], 2).read([]) == ()


def test_ids_beyond_the_vocabulary_are_ignored() -> None:
    item = row(
        temperature=0.0,
        prompt=[VOCAB + 5],
        output=[VOCAB],
        logit_bias=((VOCAB, 100.0),),
        presence_penalty=1.0,
        repetition_penalty=1.1,
        min_tokens=5,
        stop_token_ids=(VOCAB + 1,),
    )
    values = logits(1)
    assert sample(values, [item]).tokens == (int(values.argmax()),)


def test_nan_is_reported_not_sampled() -> None:
    values = logits(2)
    values[1, 3] = float("nan")
    with pytest.raises(InvariantBroken, match="NaN"):
        sample(values, [row(), row(temperature=0.0)])


def test_bf16_logits_are_sampled_in_fp32_and_no_rows_are_fine() -> None:
    values = logits(1).bfloat16()
    assert sample(values, [row(seed=4)]).tokens == sample(values.float(), [row(seed=4)]).tokens
    assert sample(values[:0], []) == Sampled(tokens=(), logprobs=())


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(sampling_rows(), min_size=1, max_size=20), seed=st.integers(0, 1000))
def test_a_token_that_only_the_device_knows_counts_like_any_other(rows: list[SampleRow], seed: int) -> None:
    values = logits(len(rows), seed)
    late = [
        replace(item, output=item.output[:-1], drawn_at=2 * i) if item.output else item
        for i, item in enumerate(rows)
    ]
    drawn = torch.zeros(2 * len(rows), dtype=torch.int64)
    for index, item in enumerate(rows):
        drawn[2 * index] = item.output[-1] if item.output else 0
    assert draw(values, late, drawn).read() == draw(values, rows).read()
