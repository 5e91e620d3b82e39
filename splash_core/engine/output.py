"""From hidden rows to tokens: sampling and prompt scores, each at the row's home rank.

Everything is enqueued; the host reads it when the step has ended.

Legend: N rows of the step, N_j at home here, M rows whose logits are wanted, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from splash_core.attention.batch import PADDING, Batch, IntArray
from splash_core.attention.context import RankContext
from splash_core.engine.decoder import home_logits
from splash_core.engine.drawn import DrawnTokens
from splash_core.engine.mirror import SequenceMirrors
from splash_core.ids import SeqId, StepId
from splash_core.model.adjust import SampleRow
from splash_core.model.logprobs import PendingLogprobs, start_logprobs
from splash_core.model.sampler import PendingSample, draw
from splash_core.scheduling.step import PromptLogprobs, SampledToken

SCORED_ROWS_AT_ONCE = 64
"""Prompt rows per rank whose full logits are held at once."""

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PendingDraw:
    """Tokens of the rows at home here, on their way to the host."""

    seqs: tuple[SeqId, ...]
    sample: PendingSample

    def read(self) -> tuple[SampledToken, ...]:
        """To be called once the step has ended."""
        drawn = self.sample.read()
        return tuple(
            SampledToken(seq=seq, token=token, logprobs=logprobs)
            for seq, token, logprobs in zip(self.seqs, drawn.tokens, drawn.logprobs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Scores of some prompt rows at home here, on their way to the host."""

    rows: tuple[tuple[SeqId, int, int], ...]
    """Of each its sequence, the position of the token that is scored, and how many best ones are wanted."""
    logprobs: PendingLogprobs

    def read(self) -> Iterator[PromptLogprobs]:
        """To be called once the step has ended."""
        entries = self.logprobs.read([num_top for _, _, num_top in self.rows])
        for (seq, position, _), entry in zip(self.rows, entries, strict=True):
            yield PromptLogprobs(seq=seq, first_position=position, entries=(entry,))


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step tells, on its way to the host."""

    draw: PendingDraw | None = None
    scores: tuple[PendingScores, ...] = ()

    def tokens(self) -> tuple[SampledToken, ...]:
        """Drawn here; to be called once the step has ended."""
        return () if self.draw is None else self.draw.read()

    def prompt_logprobs(self) -> tuple[PromptLogprobs, ...]:
        """Scored here; to be called once the step has ended."""
        return tuple(_join([part for scores in self.scores for part in scores.read()]))


def logits_to_draw(ctx: RankContext, batch: Batch, hidden_ND: Tensor) -> Tensor:
    """`[M_j, V]`: logits of the rows at home here that draw; all ranks ask together."""
    wanted_N = _sampled_rows(batch)
    return home_logits(ctx, _take(ctx, hidden_ND, batch, wanted_N), _counts(batch, wanted_N))


def start_draw(
    batch: Batch, mirrors: SequenceMirrors, logits_MV: Tensor, *, before: DrawnTokens
) -> PendingDraw:
    """The next tokens, given the logits of the M_j sampled rows at home here, in row order."""
    rows: list[SampleRow] = []
    seqs: list[SeqId] = []
    for row in _home_rows(batch, _sampled_rows(batch)):
        sequence = batch.sequences[batch.sequence_N[row]]
        mirror = mirrors[sequence.seq]
        # Copies of long histories are made only for rows whose parameters look at them.
        reads = mirror.sampling.reads_history
        late = reads and bool(batch.drawn_N[row])
        seqs.append(sequence.seq)
        rows.append(
            SampleRow(
                params=mirror.sampling,
                position=sequence.end,
                prompt=mirror.prompt if reads else (),
                output=mirror.output if reads else (),
                drawn_at=before.place(sequence.seq) if late else None,
            )
        )
    drawn_M = before.tokens_M if batch.drawn_N.any() else None
    return PendingDraw(tuple(seqs), draw(logits_MV, rows, drawn_M))


def drawn_tokens(ctx: RankContext, step: StepId, batch: Batch, pending: PendingDraw) -> DrawnTokens:
    """What the step draws on all ranks, for the rows of the next one."""
    wanted_N = _sampled_rows(batch)
    seqs = [batch.sequences[index].seq for index in batch.sequence_N[wanted_N]]
    return DrawnTokens(ctx, step, seqs, _counts(batch, wanted_N), pending.sample.tokens_N)


def draws(batch: Batch) -> bool:
    """True when some row of the step draws a token, on whatever rank."""
    return any(sequence.sample for sequence in batch.sequences)


def start_scores(
    ctx: RankContext, batch: Batch, mirrors: SequenceMirrors, hidden_ND: Tensor
) -> tuple[PendingScores, ...]:
    """Log-probabilities of prompt tokens whose preceding row is at home here."""
    wanted_N = np.zeros(batch.num_rows, dtype=np.bool_)
    for index, sequence in enumerate(batch.sequences):
        mirror = mirrors[sequence.seq]
        if mirror.sampling.prompt_logprobs is not None:
            wanted_N |= (batch.sequence_N == index) & (batch.position_N < mirror.num_prompt - 1)
    return tuple(
        _score_piece(ctx, batch, mirrors, hidden_ND, piece_N) for piece_N in _pieces(batch, wanted_N)
    )


def _score_piece(
    ctx: RankContext, batch: Batch, mirrors: SequenceMirrors, hidden_ND: Tensor, wanted_N: BoolArray
) -> PendingScores:
    logits_MV = home_logits(ctx, _take(ctx, hidden_ND, batch, wanted_N), _counts(batch, wanted_N))
    rows: list[tuple[SeqId, int, int]] = []
    tokens: list[int] = []
    for row in _home_rows(batch, wanted_N):
        sequence, position = batch.sequences[batch.sequence_N[row]], int(batch.position_N[row]) + 1
        mirror = mirrors[sequence.seq]
        rows.append((sequence.seq, position, mirror.sampling.prompt_logprobs or 0))
        tokens.append(mirror.tokens[position])
    tokens_M = ctx.kernels.upload(np.asarray(tokens, dtype=np.int64))
    most = max((num_top for _, _, num_top in rows), default=0)
    return PendingScores(tuple(rows), start_logprobs(logits_MV, tokens_M, most))


def _pieces(batch: Batch, wanted_N: BoolArray) -> list[BoolArray]:
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


def _sampled_rows(batch: Batch) -> BoolArray:
    """`[N]`: the last row of each sequence that wants a token."""
    # One entry more, which is what PADDING finds.
    last_S = np.asarray([s.end - 1 if s.sample else -1 for s in batch.sequences] + [-1], dtype=np.int64)
    return (batch.position_N == last_S[batch.sequence_N]) & (batch.sequence_N != PADDING)


def _home_rows(batch: Batch, wanted_N: BoolArray) -> IntArray:
    home = batch.home
    return wanted_N[home].nonzero()[0] + home.start


def _counts(batch: Batch, wanted_N: BoolArray) -> list[int]:
    return [int(wanted_N[batch.rows_of(rank)].sum()) for rank in range(batch.num_ranks)]


def _take(ctx: RankContext, hidden_ND: Tensor, batch: Batch, wanted_N: BoolArray) -> Tensor:
    """Hidden rows at home here, those wanted."""
    return hidden_ND[ctx.kernels.upload(wanted_N[batch.home].nonzero()[0])]
