"""Versions count up, are found again, and differ key by key."""

import pytest

from splash_core.errors import Conflict, NotFound
from splash_core.policy.document import PolicyDocument, parse_document
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.snapshot import Phase
from splash_core.policy.versions import Change, History, change_text, changes


def _grown(history: History, *texts: str) -> History:
    for text in texts:
        history = history.with_version(history.draft(parse_document(text), source="test", time_s=1.0))
    return history


def test_numbers_only_grow_and_the_newest_is_active() -> None:
    history = _grown(History(), "[all]\nmargin = 1", "[all]\nmargin = 2")
    assert [version.number for version in history.versions] == [1, 2]
    assert history.active is history.find(2)
    assert history.find(1).document == parse_document("[all]\nmargin = 1")
    higher = _grown(history.above(7), "[all]\nmargin = 3")
    assert higher.active is not None
    assert higher.active.number == 8
    assert _grown(higher.above(2), "").next_number == 10
    assert History().active is None


def test_old_versions_go_and_are_said_to_be_gone() -> None:
    history = _grown(History(), *[f"[all]\nconfirm = {count}" for count in range(1, 300)])
    assert len(history.versions) == 256
    with pytest.raises(NotFound, match="version 3 does not exist; 44 to 299 are kept"):
        history.find(3)
    with pytest.raises(NotFound, match="there is none yet"):
        History().find(1)


def test_differences_are_told_key_by_key() -> None:
    before = parse_document(
        '[all]\nmargin = 0.1\n[[decode.calendar]]\nfrom = "08:00"\nto = "09:00"\npin = "TP"\nshadow = true'
    )
    after = parse_document(
        '[all]\ndwell_s = 3\n[[decode.calendar]]\nfrom = "08:00"\nto = "10:00"\npin = "DP"\nshadow = true\n'
        '[group.x]\nallowed = ["TP", "CP"]'
    )
    found = changes(before, after)
    assert found == (
        Change(key="all.margin", before=0.1, after=None),
        Change(key="decode.calendar[0].to", before="09:00", after="10:00"),
        Change(key="decode.calendar[0].pin", before="TP", after="DP"),
        Change(key="all.dwell_s", before=None, after=3.0),
        Change(key="group.x.allowed", before=None, after=["TP", "CP"]),
    )
    assert [change_text(change.to_json()) for change in found] == [
        "all.margin: 0.1 → –",
        "decode.calendar[0].to: 09:00 → 10:00",
        "decode.calendar[0].pin: TP → DP",
        "all.dwell_s: – → 3.0",
        "group.x.allowed: – → TP, CP",
    ]
    assert changes(after, after) == ()


def _in_force(number: int, text: str) -> PolicyInForce:
    document = parse_document(text)
    return PolicyInForce(
        phase=Phase.DECODE, group="decode-0", document=document, number=number, digest=document.digest
    )


def test_a_group_goes_on_to_higher_numbers_only() -> None:
    earlier = _in_force(4, "[all]\nmargin = 1")
    _in_force(4, "[all]\nmargin = 1").check_follows(earlier)
    _in_force(9, "").check_follows(earlier)
    for number, text in ((4, ""), (3, "[all]\nmargin = 1")):
        with pytest.raises(Conflict, match=f"version 4 .* version {number} .* does not follow it"):
            _in_force(number, text).check_follows(earlier)


def test_a_group_looks_around_where_a_calendar_may_pin_it() -> None:
    night = '[[decode.calendar]]\nfrom = "22:00"\nto = "06:00"\npin = "DOP"'
    assert _in_force(1, night).may_pin
    assert not _in_force(1, night.replace("DOP", "none")).may_pin
    assert not _in_force(1, night.replace("decode", "prefill")).may_pin
    assert PolicyDocument().ever("pin", phase=Phase.DECODE, group="decode-0") == []
