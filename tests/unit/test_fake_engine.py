"""The engine without weights: same tokens however the work is cut, and no tolerance for a wrong plan."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.engine.fake import FakeEngine, fake_token
from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.columns import SlotRows
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import (
    DrawnToken,
    NewSequence,
    SequenceStep,
    StepPlan,
    StepResult,
    TableUpdate,
)
from splash_core.spec.request import SamplingParams

PAGE, VOCAB, SEQ = 4, 97, SeqId(3)


def _plan(
    number: int,
    start: int,
    tokens: tuple[int, ...] | DrawnToken,
    *,
    sample: bool,
    before: tuple[int, ...] = (),
    **parts: Any,
) -> StepPlan:
    return StepPlan(
        step=StepId(number),
        epoch=Epoch(0),
        layout=Layout.TP,
        sequences=(SequenceStep(seq=SEQ, start=start, tokens=tokens, sample=sample, before=before),),
        **parts,
    )


def _opening(prompt: tuple[int, ...], ranks: int, **sampling: object) -> dict[str, Any]:
    new = NewSequence(
        seq=SEQ,
        sampling=SamplingParams(temperature=0.0, **sampling),  # type: ignore[arg-type]
        tokens=prompt,
        num_prompt=len(prompt),
    )
    pages = SlotRows.of(((0,) * ranks,) * 32, num_ranks=ranks)
    return {"started": (new,), "tables": (TableUpdate(seq=SEQ, first_page=0, slots=pages),)}


def _step(engines: list[FakeEngine], plan: StepPlan) -> list[StepResult]:
    return [engine.step(plan) for engine in engines]


def _engines(ranks: int) -> list[FakeEngine]:
    return [
        FakeEngine(rank=RankId(rank), num_ranks=ranks, vocab=VOCAB, page_size=PAGE) for rank in range(ranks)
    ]


@settings(max_examples=40)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=20).map(tuple),
    ranks=st.integers(1, 4),
    data=st.data(),
)
def test_chunks_and_ranks_do_not_change_the_token(
    prompt: tuple[int, ...], ranks: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(prompt) - 1))
    engines = _engines(ranks)
    first = _step(engines, _plan(1, 0, prompt[:cut], sample=False, **_opening(prompt, ranks)))
    assert all(not result.tokens for result in first)
    second = _step(engines, _plan(2, cut, prompt[cut:], sample=True))
    drawn = [token for result in second for token in result.tokens]
    assert [(token.seq, token.token) for token in drawn] == [(SEQ, fake_token(prompt, seed=0, vocab=VOCAB))]


def test_prompt_scores_cover_every_position_once() -> None:
    prompt = (5, 6, 7, 8, 9)
    engine = _engines(1)[0]
    parts = engine.step(
        _plan(1, 0, prompt[:2], sample=False, **_opening(prompt, 1, prompt_logprobs=1))
    ).prompt_logprobs
    parts += engine.step(_plan(2, 2, prompt[2:], sample=True)).prompt_logprobs
    scored = {part.first_position + i: entry.token for part in parts for i, entry in enumerate(part.entries)}
    assert scored == dict(enumerate(prompt[1:], start=1))


def test_a_plan_that_does_not_continue_the_history_is_refused() -> None:
    engine = _engines(1)[0]
    with pytest.raises(InvariantBroken, match="never started"):
        engine.step(_plan(1, 0, (1,), sample=True))
    engine.step(_plan(1, 0, (1, 2), sample=False, **_opening((1, 2, 3), 1)))
    with pytest.raises(InvariantBroken, match="do not continue"):
        engine.step(_plan(2, 2, (4,), sample=True))


def test_a_table_too_short_for_the_rows_is_refused() -> None:
    engine = _engines(1)[0]
    opening = _opening((1, 2, 3, 4, 5), 1)
    opening["tables"] = (TableUpdate(seq=SEQ, first_page=0, slots=SlotRows.of([(0,)], num_ranks=1)),)
    with pytest.raises(InvariantBroken, match="1 pages of 4 tokens"):
        engine.step(_plan(1, 0, (1, 2, 3, 4, 5), sample=True, **opening))


def test_rows_go_on_with_tokens_that_only_ranks_know() -> None:
    engines, prompt = _engines(2), (1, 2, 3)
    history = [*prompt]
    for _ in range(3):
        history.append(fake_token(history, seed=0, vocab=VOCAB))
    drawn: list[int] = []
    for plan in (
        _plan(1, 0, prompt, sample=True, **_opening(prompt, 2)),
        _plan(2, 3, DrawnToken(StepId(1)), sample=True),
        _plan(3, 4, DrawnToken(StepId(2)), sample=True, before=(history[3],)),
    ):
        drawn += [token.token for result in _step(engines, plan) for token in result.tokens]
    assert drawn == history[3:]


def test_a_draw_of_another_step_or_told_otherwise_is_named() -> None:
    (engine,) = _engines(1)
    engine.step(_plan(1, 0, (1, 2, 3), sample=True, **_opening((1, 2, 3), 1)))
    with pytest.raises(InvariantBroken, match="has last drawn in step 1"):
        engine.step(_plan(3, 3, DrawnToken(StepId(2)), sample=True))
    engine.step(_plan(2, 3, DrawnToken(StepId(1)), sample=True))
    wrong = (fake_token([1, 2, 3], seed=0, vocab=VOCAB) + 1) % VOCAB
    with pytest.raises(InvariantBroken, match="do not continue its history"):
        engine.step(_plan(3, 4, DrawnToken(StepId(2)), sample=True, before=(wrong,)))
