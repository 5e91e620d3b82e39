"""What changes logits before a draw: bias, penalties, cuts. Nothing here waits for the device.

Ties at a cut keep all tied tokens, so no sort order can leak into the result.

Legend: N rows, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splash_core.kernels.uploads import upload
from splash_core.spec.request import SamplingParams

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One row to draw for."""

    params: SamplingParams
    position: int
    """Position of the token to be drawn: with the seed it fixes the noise."""
    prompt: Sequence[int]
    """Prompt token ids (read by the repetition penalty)."""
    output: Sequence[int]
    """Token ids generated so far, as far as the host knows them."""
    drawn_at: int | None = None
    """Where among the tokens that the step before drew the last one generated is, if the host lacks it."""

    @property
    def below_minimum(self) -> bool:
        """True while no stop token may be drawn."""
        return len(self.output) + (self.drawn_at is not None) < self.params.min_tokens

    @property
    def has_penalties(self) -> bool:
        """True when tokens seen before are less, or more, likely."""
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)

    @property
    def takes_best(self) -> bool:
        """True when the most probable token of the raw logits is the answer."""
        changed = self.params.logit_bias or self.has_penalties or self.below_minimum
        return self.params.greedy and not changed


def column(values: Iterable[float], like: Tensor) -> Tensor:
    """One number for each row, `[N, 1]`, with the type of `like` and beside it."""
    return upload(np.asarray(list(values), dtype=np.float64)[:, None], like.device).to(like.dtype)


def add_bias_(logits_NV: Tensor, rows: Sequence[SampleRow]) -> None:
    """Add each row's `logit_bias`."""
    vocab = logits_NV.shape[1]
    entries = [
        (index * vocab + token, bias)
        for index, row in enumerate(rows)
        for token, bias in row.params.logit_bias
        if 0 <= token < vocab
    ]
    if entries:
        places = upload(np.asarray([place for place, _ in entries]), logits_NV.device)
        biases = column((bias for _, bias in entries), logits_NV)[:, 0]
        logits_NV.view(-1).index_add_(0, places, biases)


def penalise_(logits_NV: Tensor, rows: Sequence[SampleRow], drawn_M: Tensor | None) -> None:
    """Repetition over prompt and output, then frequency and presence over the output.

    Args:
        logits_NV: changed in place.
        rows: of the logits.
        drawn_M: tokens that the step before drew, for rows whose last one the host lacks.
    """
    if not any(row.has_penalties for row in rows):
        return
    counts_NV = _counts(logits_NV, [row.output if row.has_penalties else () for row in rows])
    late = [(i, row.drawn_at) for i, row in enumerate(rows) if row.has_penalties and row.drawn_at is not None]
    if late:
        assert drawn_M is not None, "rows refer to tokens of the step before"
        rows_L, places_L = upload(np.asarray(late, dtype=np.int64).T, logits_NV.device)
        ones_L = torch.ones_like(rows_L, dtype=counts_NV.dtype)
        places = rows_L * logits_NV.shape[1] + drawn_M[places_L]
        counts_NV.view(-1).index_add_(0, places, ones_L)
    if any(row.params.repetition_penalty != 1.0 for row in rows):
        asked = [row.prompt if row.params.repetition_penalty != 1.0 else () for row in rows]
        seen_NV = (counts_NV + _counts(logits_NV, asked)) > 0
        penalty_N1 = column((row.params.repetition_penalty for row in rows), logits_NV)
        changed_NV = torch.where(logits_NV > 0, logits_NV / penalty_N1, logits_NV * penalty_N1)
        logits_NV.copy_(torch.where(seen_NV, changed_NV, logits_NV))
    frequency_N1 = column((row.params.frequency_penalty for row in rows), logits_NV)
    presence_N1 = column((row.params.presence_penalty for row in rows), logits_NV)
    logits_NV -= frequency_N1 * counts_NV + presence_N1 * (counts_NV > 0)


def forbid_stops_(logits_NV: Tensor, rows: Sequence[SampleRow]) -> None:
    """No stop token before `min_tokens`."""
    stops = [row.params.stop_token_ids if row.below_minimum else () for row in rows]
    places = _places(stops, logits_NV.shape[1])
    if len(places):
        logits_NV.view(-1).index_fill_(0, upload(places, logits_NV.device), _NEVER)


def cut(logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """What survives top-k, top-p and min-p of temperature-scaled logits; -inf in place of the rest."""
    vocab = logits_NV.shape[1]
    limits = [entry.top_k if 0 < entry.top_k < vocab else 0 for entry in params]
    if any(limits):
        best_NK = logits_NV.topk(max(limits)).values
        last_N1 = upload(np.asarray(limits)[:, None] - 1, logits_NV.device)
        floor_N1 = best_NK.gather(1, last_N1.clamp(min=0)).masked_fill(last_N1 < 0, _NEVER)
        logits_NV = _keep(logits_NV, floor_N1)
    if any(entry.top_p < 1.0 for entry in params):
        logits_NV = _keep(logits_NV, _top_p_floor(logits_NV, [entry.top_p for entry in params]))
    if any(entry.min_p > 0.0 for entry in params):
        margin_N1 = column((np.log(entry.min_p) if entry.min_p else _NEVER for entry in params), logits_NV)
        logits_NV = _keep(logits_NV, logits_NV.amax(dim=-1, keepdim=True) + margin_N1)
    return logits_NV


def _keep(logits_NV: Tensor, floor_N1: Tensor) -> Tensor:
    """What is not below the floor: tied values stay or go together."""
    return logits_NV.masked_fill(logits_NV < floor_N1, _NEVER)


def _top_p_floor(logits_NV: Tensor, top_p: Sequence[float]) -> Tensor:
    """The smallest logit in each smallest set of best tokens whose probability reaches `top_p`; `[N, 1]`."""
    best_NV = logits_NV.sort(dim=-1, descending=True).values
    mass_NV = (best_NV - best_NV[:, :1]).exp().cumsum(dim=-1, dtype=torch.float64)
    wanted_N1 = upload(np.asarray(top_p)[:, None], logits_NV.device)
    short_N1 = (mass_NV < wanted_N1 * mass_NV[:, -1:]).sum(dim=-1, keepdim=True)
    floor_N1 = best_NV.gather(1, short_N1.clamp(max=best_NV.shape[1] - 1))
    return floor_N1.masked_fill(wanted_N1 >= 1.0, _NEVER)


def _counts(like_NV: Tensor, ids: Sequence[Sequence[int]]) -> Tensor:
    """How often each token occurs in each row's ids; whole numbers, so their order does not matter."""
    places = upload(_places(ids, like_NV.shape[1]), like_NV.device)
    counts_NV = torch.zeros_like(like_NV)
    counts_NV.view(-1).index_add_(0, places, torch.ones_like(places, dtype=like_NV.dtype))
    return counts_NV


def _places(ids: Sequence[Sequence[int]], vocab: int) -> np.ndarray:
    """Places in flattened `[N, V]`; ids beyond the vocabulary (an EOS of another tokenizer) have none."""
    parts = [np.empty(0, dtype=np.int64)]
    for index, row in enumerate(ids):
        tokens = np.asarray(row, dtype=np.int64)
        parts.append(tokens[(tokens >= 0) & (tokens < vocab)] + index * vocab)
    return np.concatenate(parts)
