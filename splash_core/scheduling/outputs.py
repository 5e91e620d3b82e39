"""What a drawn token means for its sequence: stop, length, and the scores of its prompt."""

from splash_core.errors import InvariantBroken
from splash_core.scheduling.events import FinishedEvent, FinishReason, PrefilledEvent, TokenEvent
from splash_core.scheduling.sequence import Sequence
from splash_core.scheduling.step import PromptLogprobs, TokenLogprobs


def accept_token(
    sequence: Sequence, token: int, logprobs: TokenLogprobs | None
) -> TokenEvent | FinishedEvent:
    """Append a drawn token; tells it, or that it is a stop token."""
    sequence.tokens.append(token)
    generated = sequence.num_generated
    if token in sequence.sampling.stop_token_ids and generated >= sequence.sampling.min_tokens:
        return FinishedEvent(
            seq=sequence.seq,
            request_id=sequence.request_id,
            reason=FinishReason.STOP,
            num_generated=generated,
            stop_token=token,
            logprobs=logprobs,
        )
    return TokenEvent(
        seq=sequence.seq,
        request_id=sequence.request_id,
        index=generated - 1,
        token=token,
        logprobs=logprobs,
    )


def length_reached(sequence: Sequence) -> FinishedEvent | None:
    """The end by length, if all tokens that were asked for have been told."""
    if sequence.num_generated < sequence.sampling.max_tokens:
        return None
    return FinishedEvent(
        seq=sequence.seq,
        request_id=sequence.request_id,
        reason=FinishReason.LENGTH,
        num_generated=sequence.num_generated,
    )


def record_scores(sequence: Sequence, part: PromptLogprobs) -> None:
    """Keep prompt log-probabilities until all are there; parts may repeat after a preemption."""
    if sequence.prompt_reported:
        return
    for offset, entry in enumerate(part.entries):
        sequence.prompt_scores[part.first_position + offset] = entry


def prefilled(
    sequence: Sequence, first_token: int | None, first_logprobs: TokenLogprobs | None
) -> PrefilledEvent:
    """The prompt is computed: report it, once.

    Raises:
        InvariantBroken: scores of the prompt were asked for and some are missing.
    """
    scores: tuple[TokenLogprobs, ...] = ()
    if sequence.sampling.prompt_logprobs is not None:
        positions = range(1, sequence.num_prompt)
        missing = [position for position in positions if position not in sequence.prompt_scores]
        if missing:
            raise InvariantBroken(
                f"sequence {sequence.seq}: no prompt log-probabilities for {len(missing)} of "
                f"{len(positions)} positions, first {missing[0]}"
            )
        scores = tuple(sequence.prompt_scores[position] for position in positions)
    sequence.prompt_reported = True
    sequence.prompt_scores.clear()
    return PrefilledEvent(
        seq=sequence.seq,
        request_id=sequence.request_id,
        first_token=first_token,
        first_logprobs=first_logprobs,
        prompt_logprobs=scores,
    )
