"""From logits to tokens, row by row, as OpenAI and vLLM order it.

Order: logit bias → penalties → `min_tokens` mask → temperature → top-k → top-p → min-p → draw. Reported
log-probabilities are of the unmodified distribution.

Invariant: a row's token depends on its own logits, parameters, position and tokens only. Ties at a cut keep
all tied tokens and ties at the top go to the lowest id, so no sort order can leak into the result.

Legend: N rows, V vocabulary, C candidates that survive the cuts, R rows with logprobs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_core.errors import InvariantBroken
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.model.noise import gumbel, row_key
from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import SamplingParams

_FIRST_CUT = 1024
"""Candidates sorted before a whole row is: top-p rarely needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One row to draw for."""

    params: SamplingParams
    position: int
    """Position of the token to be drawn: with the seed it fixes the noise."""
    prompt: Sequence[int]
    """Prompt token ids (read by the repetition penalty)."""
    output: Sequence[int]
    """Token ids generated so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Drawn tokens in row order, with log-probabilities where the row asked for them."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]


def sample(logits_NV: Tensor, rows: Sequence[SampleRow]) -> Sampled:
    """Draw one token for each row of `[N, V]` logits (not modified).

    Raises:
        InvariantBroken: a row holds NaN.
    """
    assert logits_NV.shape[0] == len(rows)
    if not rows:
        return Sampled(tokens=(), logprobs=())
    logits_NV = logits_NV.to(at_least_fp32(logits_NV.dtype))
    best_N = logits_NV.argmax(dim=-1)
    # argmax takes NaN for the largest value, so looking at the winners finds any NaN.
    if bool(logits_NV.gather(1, best_N[:, None]).isnan().any()):
        raise InvariantBroken("logits hold NaN; the model's weights or its numerics are broken")
    tokens = best_N.tolist()
    for index, row in enumerate(rows):
        if not _is_argmax(row):
            tokens[index] = _draw(logits_NV[index], row)
    return Sampled(tokens=tuple(tokens), logprobs=_chosen_logprobs(logits_NV, rows, tokens))


def token_logprobs(logits_NV: Tensor, tokens: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Log-probability of `tokens[i]` in row i of `[N, V]` logits, and of the `num_top` most probable ones."""
    if not tokens:
        return ()
    logprobs_NV = torch.log_softmax(logits_NV.to(at_least_fp32(logits_NV.dtype)), dim=-1)
    chosen_N = logprobs_NV.gather(1, torch.tensor(tokens, device=logprobs_NV.device)[:, None])[:, 0].tolist()
    values_NK, ids_NK = logprobs_NV.topk(min(num_top, logprobs_NV.shape[1]), dim=-1)
    tops = [
        tuple(zip(ids, values, strict=True))
        for ids, values in zip(ids_NK.tolist(), values_NK.tolist(), strict=True)
    ]
    return tuple(
        TokenLogprobs(token=token, logprob=logprob, top=top)
        for token, logprob, top in zip(tokens, chosen_N, tops, strict=True)
    )


def _is_argmax(row: SampleRow) -> bool:
    """True when the most probable token of the raw logits is the answer."""
    params = row.params
    return params.greedy and not (
        params.logit_bias or _has_penalties(params) or len(row.output) < params.min_tokens
    )


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


def _chosen_logprobs(
    logits_NV: Tensor, rows: Sequence[SampleRow], tokens: Sequence[int]
) -> tuple[TokenLogprobs | None, ...]:
    result: list[TokenLogprobs | None] = [None] * len(rows)
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if asking:
        widest = max(rows[index].params.logprobs or 0 for index in asking)
        entries = token_logprobs(logits_NV[asking], [tokens[index] for index in asking], widest)
        for index, entry in zip(asking, entries, strict=True):
            top = entry.top[: rows[index].params.logprobs or 0]
            result[index] = TokenLogprobs(token=entry.token, logprob=entry.logprob, top=top)
    return tuple(result)


def _ids_within(ids: Sequence[int], vocab: int, device: torch.device) -> Tensor:
    """Token ids as an index; ids beyond the vocabulary (an EOS of another tokenizer) name no logit."""
    tokens = torch.tensor(ids, dtype=torch.int64, device=device)
    return tokens[(tokens >= 0) & (tokens < vocab)]


def _draw(raw_V: Tensor, row: SampleRow) -> int:
    logits_V = _adjusted(raw_V, row)
    params = row.params
    if params.greedy:
        return int(logits_V.argmax())
    scaled_V = logits_V / params.temperature
    if not bool(scaled_V.max().isfinite()):
        # So low a temperature that the division overflows leaves nothing but the best token.
        return int(logits_V.argmax())
    values, ids = _candidates(scaled_V, params)
    if ids.shape[0] == 1:
        return int(ids[0])
    values = values + gumbel(row_key(params.seed, row.position), ids, values.dtype)
    return int(ids[values.argmax()])


def _adjusted(raw_V: Tensor, row: SampleRow) -> Tensor:
    """Bias, penalties and the `min_tokens` mask, on a copy where there is something to change."""
    params, vocab = row.params, raw_V.shape[0]
    needs_mask = len(row.output) < params.min_tokens
    if not (params.logit_bias or needs_mask or _has_penalties(params)):
        return raw_V
    logits_V = raw_V.clone()
    for token, bias in params.logit_bias:
        if 0 <= token < vocab:
            logits_V[token] += bias
    if _has_penalties(params):
        _penalise_(logits_V, row)
    if needs_mask:
        logits_V[_ids_within(params.stop_token_ids, vocab, raw_V.device)] = float("-inf")
    return logits_V


def _penalise_(logits_V: Tensor, row: SampleRow) -> None:
    """Repetition over prompt and output, then frequency and presence over the output, in place."""
    params, vocab = row.params, logits_V.shape[0]
    output = _ids_within(row.output, vocab, logits_V.device)
    if params.repetition_penalty != 1.0:
        seen = torch.cat((_ids_within(row.prompt, vocab, logits_V.device), output)).unique()
        values = logits_V[seen]
        penalty = params.repetition_penalty
        logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.presence_penalty or params.frequency_penalty) and output.shape[0]:
        ids, counts = output.unique(return_counts=True)
        logits_V[ids] -= params.frequency_penalty * counts.to(logits_V.dtype) + params.presence_penalty


def _candidates(scaled_V: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Scaled logits that survive top-k, top-p and min-p, and their token ids (ascending): `[C]` each."""
    values, ids = scaled_V, torch.arange(scaled_V.shape[0], device=scaled_V.device)
    if 0 < params.top_k < values.shape[0]:
        values, ids = _keep(values, ids, values.topk(params.top_k).values[-1])
    if params.top_p < 1.0:
        values, ids = _keep(values, ids, _top_p_floor(values, params.top_p))
    if params.min_p > 0.0:
        values, ids = _keep(values, ids, values.max() + math.log(params.min_p))
    return values, ids


def _keep(values: Tensor, ids: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """What is not below `floor`: tied values stay or go together."""
    kept = (values >= floor).nonzero()[:, 0]
    return values[kept], ids[kept]


def _top_p_floor(values_C: Tensor, top_p: float) -> Tensor:
    """The smallest logit in the smallest set of best candidates whose probability reaches `top_p`."""
    total = torch.logsumexp(values_C, dim=0)
    for count in (_FIRST_CUT, values_C.shape[0]):
        if count < values_C.shape[0]:
            best = values_C.topk(count).values
        else:
            best = values_C.sort(descending=True).values
        reached = (best - total).exp().cumsum(dim=0)
        short = int((reached < top_p).sum())
        if short < best.shape[0]:
            return best[short]
    # Rounding kept the sum over everything just below top_p: everything stays.
    return values_C.min()
