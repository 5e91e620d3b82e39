"""Log-probabilities of chosen tokens and of the most probable ones, from logits to the host.

Legend: M rows, V vocabulary, K most probable tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_core.kernels.downloads import start_download
from splash_core.kernels.dtypes import at_least_fp32
from splash_core.scheduling.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """On their way to the host: to be read once the stream has run so far."""

    tokens_M: Tensor
    chosen_M: Tensor
    ids_MK: Tensor
    values_MK: Tensor

    def read(self, num_top: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """Each row's entry, with its `num_top` most probable tokens."""
        rows = zip(
            self.tokens_M.tolist(),
            self.chosen_M.tolist(),
            self.ids_MK.tolist(),
            self.values_MK.tolist(),
            num_top,
            strict=True,
        )
        return tuple(
            TokenLogprobs(token=token, logprob=logprob, top=tuple(zip(ids[:top], values[:top], strict=True)))
            for token, logprob, ids, values, top in rows
        )


def start_logprobs(logits_MV: Tensor, tokens_M: Tensor, most: int) -> PendingLogprobs:
    """Log-probability of `tokens_M[i]` in row i of the logits, and of the `most` most probable tokens."""
    logprobs_MV = torch.log_softmax(logits_MV.to(at_least_fp32(logits_MV.dtype)), dim=-1)
    values_MK, ids_MK = logprobs_MV.topk(min(most, logprobs_MV.shape[1]), dim=-1)
    return PendingLogprobs(
        tokens_M=start_download(tokens_M),
        chosen_M=start_download(logprobs_MV.gather(1, tokens_M[:, None])[:, 0]),
        ids_MK=start_download(ids_MK),
        values_MK=start_download(values_MK),
    )
