"""From hidden rows to tokens: sampling and prompt scores, each at the row's home rank."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.batch import Batch, IntArray
from splash_core.attention.context import RankContext
from splash_core.engine.decoder import home_logits
from splash_core.engine.mirror import Mirrors
from splash_core.model.sampler import SampleRow, sample, token_logprobs
from splash_core.scheduling.step import PromptLogprobs, SampledToken

SCORED_ROWS_AT_ONCE = 64
"""Prompt rows per rank whose full logits are held at once."""


def draw_tokens(
    ctx: RankContext, batch: Batch, mirrors: Mirrors, hidden_ND: Tensor
) -> tuple[SampledToken, ...]:
    """The next token of each sequence whose last row is at home here."""
    wanted_N = _sampled_rows(batch)
    if not wanted_N.any():
        return ()
    hidden_MD = _take(hidden_ND, batch, _home_rows(batch, wanted_N))
    return draw_from(batch, mirrors, home_logits(ctx, hidden_MD, _counts(batch, wanted_N)))


def draw_from(batch: Batch, mirrors: Mirrors, logits_MV: Tensor) -> tuple[SampledToken, ...]:
    """The next tokens, given the logits of the M sampled rows at home here, in row order."""
    mine_M = _home_rows(batch, _sampled_rows(batch))
    sequences = [batch.sequences[batch.sequence_N[row]] for row in mine_M]
    rows = []
    for sequence in sequences:
        mirror = mirrors[sequence.seq]
        # Copies of long histories are made only for rows whose parameters look at them.
        reads = mirror.sampling.reads_history
        rows.append(
            SampleRow(
                params=mirror.sampling,
                position=sequence.end,
                prompt=mirror.prompt if reads else (),
                output=mirror.output if reads else (),
            )
        )
    drawn = sample(logits_MV, rows)
    return tuple(
        SampledToken(seq=sequence.seq, token=token, logprobs=logprobs)
        for sequence, token, logprobs in zip(sequences, drawn.tokens, drawn.logprobs, strict=True)
    )


def score_prompts(
    ctx: RankContext, batch: Batch, mirrors: Mirrors, hidden_ND: Tensor
) -> tuple[PromptLogprobs, ...]:
    """Log-probabilities of prompt tokens whose preceding row is at home here."""
    wanted_N = np.zeros(batch.num_rows, dtype=np.bool_)
    for index, sequence in enumerate(batch.sequences):
        mirror = mirrors[sequence.seq]
        if mirror.sampling.prompt_logprobs is not None:
            wanted_N |= (batch.sequence_N == index) & (batch.position_N < mirror.num_prompt - 1)
    scores: list[PromptLogprobs] = []
    for piece_N in _pieces(batch, wanted_N):
        mine_M = _home_rows(batch, piece_N)
        logits_MV = home_logits(ctx, _take(hidden_ND, batch, mine_M), _counts(batch, piece_N))
        scores.extend(
            _score_row(batch, mirrors, int(row), logits_V)
            for row, logits_V in zip(mine_M, logits_MV, strict=True)
        )
    return tuple(_join(scores))


def _score_row(batch: Batch, mirrors: Mirrors, row: int, logits_V: Tensor) -> PromptLogprobs:
    sequence = batch.sequences[batch.sequence_N[row]]
    mirror = mirrors[sequence.seq]
    position = int(batch.position_N[row]) + 1
    top = mirror.sampling.prompt_logprobs or 0
    entries = token_logprobs(logits_V[None], [mirror.tokens[position]], top)
    return PromptLogprobs(seq=sequence.seq, first_position=position, entries=entries)


def _pieces(batch: Batch, wanted_N: np.ndarray) -> list[np.ndarray]:
    """Split wanted rows so that no rank has more than the limit in a piece; equal on all ranks."""
    ordinal_N = np.zeros(batch.num_rows, dtype=np.int64)
    for rank in range(batch.num_ranks):
        rows = batch.rows_of(rank)
        ordinal_N[rows] = np.cumsum(wanted_N[rows]) - 1
    piece_N = ordinal_N // SCORED_ROWS_AT_ONCE
    last = int(piece_N[wanted_N].max()) if wanted_N.any() else -1
    return [wanted_N & (piece_N == piece) for piece in range(last + 1)]


def _join(scores: Sequence[PromptLogprobs]) -> list[PromptLogprobs]:
    """Neighbouring positions of one sequence as one run."""
    runs: list[PromptLogprobs] = []
    for row in scores:
        previous = runs[-1] if runs else None
        if (
            previous is not None
            and previous.seq == row.seq
            and previous.first_position + len(previous.entries) == row.first_position
        ):
            runs[-1] = PromptLogprobs(
                seq=row.seq,
                first_position=previous.first_position,
                entries=(*previous.entries, *row.entries),
            )
        else:
            runs.append(row)
    return runs


def _sampled_rows(batch: Batch) -> np.ndarray:
    """`[N]` bool: the last row of each sequence that wants a token."""
    wanted_N = np.zeros(batch.num_rows, dtype=np.bool_)
    for index, sequence in enumerate(batch.sequences):
        if sequence.sample:
            wanted_N |= (batch.sequence_N == index) & (batch.position_N == sequence.end - 1)
    return wanted_N


def _home_rows(batch: Batch, wanted_N: np.ndarray) -> IntArray:
    home = batch.home
    return wanted_N[home].nonzero()[0] + home.start


def _counts(batch: Batch, wanted_N: np.ndarray) -> list[int]:
    return [int(wanted_N[batch.rows_of(rank)].sum()) for rank in range(batch.num_ranks)]


def _take(hidden_ND: Tensor, batch: Batch, rows_M: IntArray) -> Tensor:
    return hidden_ND[torch.from_numpy(rows_M - batch.home.start).to(hidden_ND.device)]
