"""What counts as a changed answer, and what probes conclude from rounds of them."""

import math
from dataclasses import replace

import pytest

from splash_core.policy.correctness import TOLERANCES, Answer, Said, compare, tolerance_of
from splash_core.policy.correctness_notes import (
    Due,
    GroupMark,
    PairMark,
    ProbeFinding,
    ProbeNotes,
    ProbeVerdict,
    Round,
    judge,
)
from splash_core.policy.correctness_record import DriftRecord, Treated
from splash_core.policy.snapshot import Phase

FP32 = TOLERANCES["fp32"]


def said(*tokens: int, logprob: float = -1.0, margin: float = 1.0) -> Answer:
    return tuple(Said(token=token, logprob=logprob, margin=margin) for token in tokens)


def pair(*, epochs: tuple[int, int] = (0, 0), layouts: str = "TP DP", **fields: str) -> PairMark:
    names, found = fields.get("names", "p d").split(), layouts.split()
    marks = [
        GroupMark(
            group=names[index],
            phase=phase,
            incarnation=fields.get("incarnation", "1"),
            epoch=epochs[index],
            layout=found[index],
            pinned=fields.get(f"pin_{'pd'[index]}", ""),
        )
        for index, phase in enumerate(Phase)
    ]
    return PairMark(
        model=fields.get("model", "m"), dtype="fp32", prompts=((1, 2),), prefill=marks[0], decode=marks[1]
    )


def asked(mark: PairMark, *answers: Answer, time_s: float = 0.0) -> Round:
    return Round(time_s=time_s, mark=mark, answers=answers or (said(5, 6),))


def found(notes: ProbeNotes, due: Due, *rounds: Round) -> ProbeFinding:
    finding = judge(due, notes.reference(rounds[-1].mark), rounds)
    assert finding is not None
    return finding


def with_reference(mark: PairMark) -> ProbeNotes:
    notes = ProbeNotes()
    return notes.after(found(notes, Due.FIRST, asked(mark), asked(mark)), now_s=0.0)


def good(notes: ProbeNotes, group: str) -> GroupMark:
    return notes.good[(group, "m", "fp32")]


WRONG = said(5, 7)


def test_another_token_counts_only_where_the_reference_had_led() -> None:
    clear = compare([said(1, 2, 3)], [said(1, 9, 9)], tolerance=FP32)
    assert clear.drifted
    assert (clear.tokens, clear.differences[0].position, clear.differences[0].margin) == (1, 1, 1.0)
    assert "prompt 0 has token 9 for token 2 at position 1, which had led by 1" in clear.reason
    tie = compare([said(1, 2, 3, margin=FP32.largest)], [said(1, 9, 9)], tolerance=FP32)
    assert not tie.drifted
    assert tie.differences == (tie.differences[0],)
    assert tie.beyond == ()


def test_what_comes_after_a_tie_is_not_compared() -> None:
    tie = compare([said(1, 2, 3, margin=0.0)], [said(1, 9, 3, logprob=-1.0)], tolerance=FP32)
    assert tie.tokens == 1
    later = (*said(1, logprob=-1.0), *said(9, 3, logprob=-50.0))
    assert not compare([said(1, 2, 3, margin=0.0)], [later], tolerance=FP32).drifted


def test_a_tolerance_has_a_largest_and_a_mean() -> None:
    one = compare([said(*range(100))], [(*said(0, logprob=-1.0008), *said(*range(1, 100)))], tolerance=FP32)
    assert not one.drifted
    assert one.mean == pytest.approx(8e-6)
    all_ = compare([said(*range(100))], [said(*range(100), logprob=-1.0002)], tolerance=FP32)
    assert all_.drifted
    assert all_.largest < FP32.largest
    assert compare([said(1)], [said(1, logprob=-1.0012)], tolerance=FP32).drifted


def test_types_have_their_own_tolerance_and_unknown_ones_the_widest() -> None:
    assert tolerance_of("fp64").largest < tolerance_of("fp32").largest < tolerance_of("bf16").largest
    assert tolerance_of("fp8") == tolerance_of("bf16")
    close = compare([said(1)], [said(1, logprob=-1.05)], tolerance=tolerance_of("bf16"))
    assert not close.drifted


def test_no_number_is_never_equal_and_json_has_none() -> None:
    for value in (math.nan, -math.inf):
        broken = compare([said(1)], [said(1, logprob=value)], tolerance=tolerance_of("bf16"))
        assert broken.drifted
        assert broken.to_json()["largest_delta"] is None
    assert compare([said(1, logprob=math.nan)], [said(1, logprob=math.nan)], tolerance=FP32).drifted
    assert compare([said(1, margin=math.nan)], [said(2)], tolerance=FP32).drifted


def test_an_answer_that_ends_early_has_changed() -> None:
    short = compare([said(1, 2, margin=0.0)], [said(1)], tolerance=FP32)
    assert short.drifted
    assert "an end for token 2" in short.reason
    assert short.to_json()["differences"][0]["margin"] is None


def test_two_rounds_that_agree_become_the_reference() -> None:
    mark = pair()
    assert judge(Due.FIRST, None, ()) is None
    assert judge(Due.FIRST, None, (asked(mark),)) is None
    notes = with_reference(mark)
    reference = notes.reference(mark)
    assert reference is not None
    assert reference.answers == (said(5, 6),)
    assert {good(notes, name).layout for name in "pd"} == {"TP", "DP"}


def test_first_answers_that_differ_are_asked_a_third_time() -> None:
    mark, notes = pair(), ProbeNotes()
    assert judge(Due.FIRST, None, (asked(mark, WRONG), asked(mark))) is None
    odd = found(notes, Due.FIRST, asked(mark, WRONG), asked(mark), asked(mark))
    assert (odd.verdict, odd.round.answers) == (ProbeVerdict.REFERENCE, (said(5, 6),))
    assert odd.odd is not None
    never = found(notes, Due.FIRST, asked(mark, WRONG), asked(mark), asked(mark, WRONG))
    assert never.verdict is ProbeVerdict.DRIFT
    assert notes.after(never, now_s=0.0).reference(mark) is None
    assert [remedy.to for remedy in notes.remedies(never)] == ["TP", "DP"]


def test_a_pair_is_asked_first_then_after_switches_restarts_and_the_period() -> None:
    mark = pair()
    assert ProbeNotes().due(mark, now_s=0.0, every_s=600.0) is Due.FIRST
    notes = with_reference(mark)
    assert notes.due(mark, now_s=599.0, every_s=600.0) is None
    assert notes.due(mark, now_s=600.0, every_s=600.0) is Due.PERIOD
    assert notes.due(pair(epochs=(0, 1)), now_s=1.0, every_s=600.0) is Due.SWITCH
    assert notes.due(pair(incarnation="2"), now_s=1.0, every_s=600.0) is Due.RESTART
    assert notes.due(pair(model="other"), now_s=1.0, every_s=600.0) is Due.FIRST
    switched = pair(epochs=(0, 1), layouts="TP DOP")
    notes = notes.after(found(notes, Due.SWITCH, asked(switched)), now_s=5.0)
    assert notes.due(switched, now_s=6.0, every_s=600.0) is None
    assert good(notes, "d").layout == "DOP"


def test_the_group_that_has_switched_goes_back_and_only_that_one() -> None:
    notes = with_reference(pair())
    switched = pair(epochs=(0, 1), layouts="TP DOP")
    assert judge(Due.SWITCH, notes.reference(switched), (asked(switched, WRONG),)) is None
    drift = found(notes, Due.SWITCH, asked(switched, WRONG), asked(switched, WRONG))
    assert drift.verdict is ProbeVerdict.DRIFT
    (remedy,) = notes.remedies(drift)
    assert (remedy.mark.group, remedy.to) == ("d", "DP")
    assert "from DP to DOP; switched back and held" in remedy.reason
    after = notes.after(drift, now_s=1.0)
    assert good(after, "d").layout == "DP"
    assert after.due(switched, now_s=2.0, every_s=600.0) is None
    back = pair(epochs=(0, 2), pin_d="DP")
    assert after.due(back, now_s=2.0, every_s=600.0) is Due.SWITCH
    still = found(after, Due.SWITCH, asked(back, WRONG), asked(back, WRONG))
    (left,) = after.remedies(still)
    assert (left.to, "pinned to DP already" in left.reason) == ("", True)
    fine = after.after(found(after, Due.SWITCH, asked(back)), now_s=3.0)
    assert good(fine, "d").epoch == 2


def test_without_a_switch_everything_is_held_where_it_is() -> None:
    notes = with_reference(pair())
    drift = found(notes, Due.PERIOD, asked(pair(pin_p="TP"), WRONG), asked(pair(pin_p="TP"), WRONG))
    remedies = notes.remedies(drift)
    assert [(remedy.mark.group, remedy.to) for remedy in remedies] == [("p", ""), ("d", "DP")]
    restarted = pair(incarnation="2")
    drift = found(notes, Due.RESTART, asked(restarted, WRONG), asked(restarted, WRONG))
    remedies = notes.remedies(drift)
    assert [remedy.to for remedy in remedies] == ["TP", "DP"]
    assert "p has restarted and not switched since the last good answers" in remedies[0].reason


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_layout_that_came_with_a_restart_or_after_it_is_left(epoch: int) -> None:
    notes = with_reference(pair())
    restarted = pair(epochs=(0, epoch), layouts="TP CP", incarnation="2")
    assert notes.due(restarted, now_s=1.0, every_s=600.0) is Due.RESTART
    drift = found(notes, Due.RESTART, asked(restarted, WRONG), asked(restarted, WRONG))
    (remedy,) = notes.remedies(drift)
    assert (remedy.mark.group, remedy.to) == ("d", "DP")
    assert "d has restarted and changed its layout since the last good answers" in remedy.reason
    assert "from DP to CP; switched back and held" in remedy.reason


def test_what_was_good_under_another_model_says_nothing_of_this_one() -> None:
    notes = with_reference(pair())
    other = pair(layouts="CP CP", incarnation="2", model="other")
    drift = found(notes, Due.FIRST, asked(other, WRONG), asked(other), asked(other, WRONG))
    remedies = notes.remedies(drift)
    assert [remedy.to for remedy in remedies] == ["CP", "CP"]
    assert "p has given no good answers before" in remedies[0].reason


def test_a_reference_is_of_the_question_and_not_of_the_pair_that_was_asked() -> None:
    notes = with_reference(pair())
    other = pair(names="q d")
    assert notes.reference(other) is notes.reference(pair()) is not None
    assert notes.due(other, now_s=1.0, every_s=600.0) is Due.FIRST
    drift = found(notes, Due.FIRST, asked(other, WRONG), asked(other, WRONG))
    assert drift.verdict is ProbeVerdict.DRIFT
    assert notes.reference(pair(model="other")) is None


def test_a_new_question_does_not_make_the_present_layout_a_good_one() -> None:
    notes = with_reference(pair())
    longer = replace(pair(epochs=(0, 1), layouts="TP DOP"), prompts=((1, 2, 3),))
    notes = notes.after(found(notes, Due.SWITCH, asked(longer, WRONG), asked(longer, WRONG)), now_s=1.0)
    assert len(notes.references) == 2
    assert good(notes, "d").layout == "DP"
    switched = pair(epochs=(0, 1), layouts="TP DOP")
    drift = found(notes, Due.PERIOD, asked(switched, WRONG), asked(switched, WRONG))
    assert [(remedy.mark.group, remedy.to) for remedy in notes.remedies(drift)] == [("d", "DP")]


def test_first_answers_that_never_agree_are_asked_for_again_after_the_period() -> None:
    mark, notes = pair(), ProbeNotes()
    never = found(notes, Due.FIRST, asked(mark, WRONG), asked(mark), asked(mark, WRONG))
    notes = notes.after(never, now_s=100.0)
    assert notes.due(mark, now_s=699.0, every_s=600.0) is None
    assert notes.due(mark, now_s=700.0, every_s=600.0) is Due.FIRST
    assert notes.due(pair(epochs=(0, 1)), now_s=101.0, every_s=600.0) is Due.SWITCH


def test_a_pair_that_has_drifted_is_asked_after_a_switch_that_another_pair_was_asked_for() -> None:
    notes, other = with_reference(pair()), pair(names="q d")
    drift = found(notes, Due.PERIOD, asked(pair(), WRONG), asked(pair(), WRONG))
    notes = notes.after(drift, now_s=1.0)
    back = pair(names="q d", epochs=(0, 1))
    notes = notes.after(found(notes, Due.SWITCH, asked(back)), now_s=2.0)
    assert notes.due(back, now_s=3.0, every_s=600.0) is None
    assert notes.due(pair(epochs=(0, 1)), now_s=3.0, every_s=600.0) is Due.SWITCH
    assert other.name not in notes.without({"q"}).asked


def test_of_a_group_that_has_gone_nothing_is_kept() -> None:
    left = with_reference(pair()).without({"d"})
    assert (set(left.checked), {name[0] for name in left.good}) == ({"p"}, {"p"})
    assert left.asked == {}
    assert left.reference(pair()) is not None


def test_a_switch_there_and_back_is_held_where_it_ended() -> None:
    notes = with_reference(pair())
    back = pair(epochs=(0, 2))
    drift = found(notes, Due.SWITCH, asked(back, WRONG), asked(back, WRONG))
    (remedy,) = notes.remedies(drift)
    assert (remedy.mark.group, remedy.to) == ("d", "DP")
    assert "where it is" in remedy.reason


def test_what_does_not_come_again_is_odd_and_no_drift() -> None:
    notes = with_reference(pair())
    finding = found(notes, Due.PERIOD, asked(pair(), WRONG), asked(pair()))
    assert finding.verdict is ProbeVerdict.SAME
    assert finding.odd is not None
    assert finding.odd.drifted


def test_a_record_tells_of_each_group_in_the_shape_of_decisions() -> None:
    notes, switched = with_reference(pair()), pair(epochs=(0, 1), layouts="TP DOP")
    finding = found(notes, Due.SWITCH, asked(switched, WRONG), asked(switched, WRONG, time_s=7.0))
    (remedy,) = notes.remedies(finding)
    (decision,) = DriftRecord(finding=finding, treated=(Treated(remedy=remedy),)).decisions()
    shown = {name: decision[name] for name in ("time", "phase", "group", "verdict", "cause", "from", "to")}
    assert shown == {
        "time": 7.0,
        "phase": "decode",
        "group": "d",
        "verdict": "PIN",
        "cause": "correctness",
        "from": "DOP",
        "to": "DP",
    }
    failed = DriftRecord(finding=finding, treated=(Treated(remedy=remedy, trouble="gone"),))
    assert failed.decisions()[0]["verdict"] == "ALARM"
    assert failed.to_json()["groups"][0]["pinned_to"] is None
    assert "but that failed: gone" in failed.decisions()[0]["reason"]
