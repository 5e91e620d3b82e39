"""Comparison of answers: rounding never drifts, what is beyond it always does, JSON is always JSON."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from splash_core.policy.correctness import TOLERANCES, Answer, Said, Tolerance, compare

LOGPROBS = st.floats(min_value=-30.0, max_value=0.0)
MARGINS = st.floats(min_value=0.0, max_value=20.0)
SAID = st.builds(Said, token=st.integers(0, 5), logprob=LOGPROBS, margin=MARGINS)
ANSWERS = st.lists(st.lists(SAID, min_size=1, max_size=12).map(tuple), min_size=1, max_size=4).map(tuple)
TOLERANCE = st.sampled_from(list(TOLERANCES.values()))
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
ANY_SAID = st.builds(Said, token=st.integers(0, 5), logprob=ANY_FLOAT, margin=ANY_FLOAT)


def changed(answers: tuple[Answer, ...], at: int, said: Said) -> tuple[Answer, ...]:
    """With the `at`-th token of all exchanged."""
    found: list[Answer] = []
    for answer in answers:
        found.append((*answer[:at], said, *answer[at + 1 :]) if 0 <= at < len(answer) else answer)
        at -= len(answer)
    return tuple(found)


def all_tokens(answers: tuple[Answer, ...]) -> list[Said]:
    return [said for answer in answers for said in answer]


@given(ANSWERS, TOLERANCE, st.data())
def test_noise_within_the_mean_never_drifts(
    answers: tuple[Answer, ...], tolerance: Tolerance, data: st.DataObject
) -> None:
    noise = st.floats(min_value=-0.9 * tolerance.mean, max_value=0.9 * tolerance.mean)
    seen = tuple(
        tuple(replace(said, logprob=said.logprob + data.draw(noise)) for said in answer) for answer in answers
    )
    found = compare(answers, seen, tolerance=tolerance)
    assert not found.drifted
    assert found.tokens == len(all_tokens(answers))
    assert found.largest >= found.mean >= 0


@given(ANSWERS, TOLERANCE, st.data())
def test_another_token_drifts_exactly_where_the_reference_had_led_by_more_than_a_tie(
    answers: tuple[Answer, ...], tolerance: Tolerance, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(all_tokens(answers)) - 1))
    was = all_tokens(answers)[at]
    seen = changed(answers, at, replace(was, token=was.token + 1))
    found = compare(answers, seen, tolerance=tolerance)
    assert len(found.differences) == 1
    assert found.drifted == (was.margin > tolerance.largest)


@given(ANSWERS, TOLERANCE, st.data())
def test_one_token_that_is_far_off_always_drifts(
    answers: tuple[Answer, ...], tolerance: Tolerance, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(all_tokens(answers)) - 1))
    off = data.draw(st.floats(min_value=1.01 * tolerance.largest, allow_nan=False) | st.just(float("nan")))
    was = all_tokens(answers)[at]
    seen = changed(answers, at, replace(was, logprob=was.logprob - off))
    assert compare(answers, seen, tolerance=tolerance).drifted


@given(
    st.lists(st.tuples(st.lists(ANY_SAID, max_size=6), st.lists(ANY_SAID, max_size=6)), max_size=4), TOLERANCE
)
def test_whatever_is_compared_can_be_told(
    pairs: list[tuple[list[Said], list[Said]]], tolerance: Tolerance
) -> None:
    first, later = ([tuple(pair[side]) for pair in pairs] for side in (0, 1))
    found = compare(first, later, tolerance=tolerance)
    json.dumps(found.to_json(), allow_nan=False)
    assert found.reason
    assert isinstance(found.drifted, bool)
