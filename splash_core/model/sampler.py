"""From logits to tokens, as OpenAI and vLLM order it, all on the device that holds the logits.

Order: logit bias → penalties → `min_tokens` mask → temperature → top-k → top-p → min-p → draw. Reported
log-probabilities are of the unmodified distribution.

Invariant: a row's token depends on its own logits, parameters, position and tokens only. Ties at the top go
to the lowest id. Nothing waits for the device: tokens stay on it, and copies are under way to the host.

Legend: N rows, V vocabulary, M tokens that the step before drew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splash_core.errors import InvariantBroken
from splash_core.kernels.downloads import start_download
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.kernels.uploads import upload
from splash_core.model.adjust import SampleRow, add_bias_, column, cut, forbid_stops_, penalise_
from splash_core.model.logprobs import PendingLogprobs, start_logprobs
from splash_core.model.noise import gumbel, row_key
from splash_core.scheduling.step import TokenLogprobs

_ROWS_AT_ONCE = 16
"""Rows that take more than the best token: bounds what a draw takes beside the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Drawn tokens in row order, with log-probabilities where the row asked for them."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSample:
    """One token for each row; the host's copies may be read once the stream has run so far."""

    tokens_N: Tensor
    """On the device, int64."""
    copy_N: Tensor
    """On the host."""
    is_broken: Tensor
    """On the host: some logit was NaN."""
    asking: tuple[int, ...]
    """Rows with log-probabilities."""
    num_top: tuple[int, ...]
    """How many each of them wants."""
    logprobs: PendingLogprobs | None

    def read(self) -> Sampled:
        """What was drawn.

        Raises:
            InvariantBroken: a row held NaN.
        """
        if bool(self.is_broken):
            raise InvariantBroken("logits hold NaN; the model's weights or its numerics are broken")
        tokens = tuple(self.copy_N.tolist())
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        if self.logprobs is not None:
            for index, entry in zip(self.asking, self.logprobs.read(self.num_top), strict=True):
                logprobs[index] = entry
        return Sampled(tokens=tokens, logprobs=tuple(logprobs))


def draw(logits_NV: Tensor, rows: Sequence[SampleRow], drawn_M: Tensor | None = None) -> PendingSample:
    """Draw one token for each row.

    Args:
        logits_NV: not modified.
        rows: what each row wants.
        drawn_M: tokens that the step before drew, where rows refer to them.
    """
    assert logits_NV.shape[0] == len(rows)
    logits_NV = logits_NV.to(at_least_fp32(logits_NV.dtype))
    tokens_N = logits_NV.argmax(dim=-1)
    # argmax takes NaN for the largest value, so looking at the winners finds any NaN.
    is_broken = logits_NV.gather(1, tokens_N[:, None]).isnan().any()
    others = [index for index, row in enumerate(rows) if not row.takes_best]
    for start in range(0, len(others), _ROWS_AT_ONCE):
        piece = others[start : start + _ROWS_AT_ONCE]
        index_P = upload(np.asarray(piece), logits_NV.device)
        drawn_P = _draw(logits_NV.index_select(0, index_P), [rows[index] for index in piece], drawn_M)
        tokens_N.index_copy_(0, index_P, drawn_P)
    asking = tuple(index for index, row in enumerate(rows) if row.params.logprobs is not None)
    num_top = tuple(rows[index].params.logprobs or 0 for index in asking)
    logprobs = None
    if asking:
        index_A = upload(np.asarray(asking), logits_NV.device)
        chosen_A = tokens_N.index_select(0, index_A)
        logprobs = start_logprobs(logits_NV.index_select(0, index_A), chosen_A, max(num_top))
    return PendingSample(
        tokens_N=tokens_N,
        copy_N=start_download(tokens_N),
        is_broken=start_download(is_broken),
        asking=asking,
        num_top=num_top,
        logprobs=logprobs,
    )


def _draw(logits_NV: Tensor, rows: Sequence[SampleRow], drawn_M: Tensor | None) -> Tensor:
    """One token each, `[N]`; changes the logits."""
    add_bias_(logits_NV, rows)
    penalise_(logits_NV, rows, drawn_M)
    forbid_stops_(logits_NV, rows)
    best_N = logits_NV.argmax(dim=-1)
    params = [row.params for row in rows]
    if all(entry.greedy for entry in params):
        return best_N
    scaled_NV = logits_NV / column((entry.temperature or 1.0 for entry in params), logits_NV)
    keys = np.asarray([row_key(row.params.seed, row.position) for row in rows], dtype=np.int64)
    ids_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    noise_NV = gumbel(upload(keys[:, None], logits_NV.device), ids_V, logits_NV.dtype)
    drawn_N = (cut(scaled_NV, params) + noise_NV).argmax(dim=-1)
    # So low a temperature that the division overflows leaves nothing but the best token.
    takes_best_N = upload(np.asarray([entry.greedy for entry in params]), logits_NV.device)
    takes_best_N = takes_best_N | ~scaled_NV.amax(dim=-1).isfinite()
    return torch.where(takes_best_N, best_N, drawn_N)
