"""Policy documents: inheritance, errors that name the key, the canonical form."""

import tomllib
from typing import Any

import pytest

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.config import PolicyConfig, load_document, policy_at
from splash_core.policy.document import MAX_DOCUMENT_BYTES, PolicyDocument, parse_document
from splash_core.policy.in_force import not_offered, why_not
from splash_core.policy.keys import KEYS
from splash_core.policy.snapshot import Phase
from splash_core.policy.toml import to_toml

FULL = """
[all]
margin = 0.1
dwell_s = 4

[prefill]
enabled = false

[decode]
allowed = ["TP", "DP"]
itl_bound_ms = 40
pin = "DP"

[[decode.calendar]]
days = ["sat", "sun"]
from = "00:00"
to = "24:00"
pin = "DOP"
margin = 0.5

[group.decode-1]
margin = 0.2
pin = "none"
itl_bound_ms = "none"

[group."odd name.\\u007f"]
shadow = true

[canary]
group = "decode-1"
period_s = 30

[canary.try]
margin = 0.3
"""
THURSDAY, SATURDAY = 0.0, 2 * 86_400.0


def test_a_group_takes_from_all_its_phase_and_itself_in_that_order() -> None:
    document = parse_document(FULL)
    first = policy_at(document, phase=Phase.DECODE, group="decode-0", instant_s=THURSDAY)
    assert first.pin is Layout.DP
    assert first.config == PolicyConfig(
        margin=0.1, dwell_s=4.0, allowed=(Layout.TP, Layout.DP), itl_bound_ms=40.0
    )
    second = policy_at(document, phase=Phase.DECODE, group="decode-1", instant_s=THURSDAY)
    assert (second.pin, second.config.margin, second.config.itl_bound_ms) == (None, 0.2, None)
    assert not policy_at(document, phase=Phase.PREFILL, group="prefill-0", instant_s=THURSDAY).enabled


def test_a_calendar_changes_keys_of_its_own_section_only() -> None:
    document = parse_document(FULL)
    first = policy_at(document, phase=Phase.DECODE, group="decode-0", instant_s=SATURDAY)
    assert (first.pin, first.config.margin) == (Layout.DOP, 0.5)
    second = policy_at(document, phase=Phase.DECODE, group="decode-1", instant_s=SATURDAY)
    assert (second.pin, second.config.margin) == (None, 0.2)


def test_what_a_canary_tries_is_above_everything_on_its_group_while_it_tries() -> None:
    document = parse_document(FULL)
    for group, trying, margin in (
        ("decode-1", True, 0.3),
        ("decode-1", False, 0.2),
        ("decode-0", True, 0.1),
    ):
        found = policy_at(document, phase=Phase.DECODE, group=group, instant_s=THURSDAY, trying=trying)
        assert found.config.margin == margin


def test_a_promoted_canary_stands_in_its_phase_and_is_not_hidden_by_its_group() -> None:
    promoted = parse_document(FULL).with_promoted(Phase.DECODE)
    assert promoted.trial is None
    for group in ("decode-0", "decode-1"):
        found = policy_at(promoted, phase=Phase.DECODE, group=group, instant_s=THURSDAY)
        assert found.config.margin == 0.3
    assert parse_document(FULL).without_trial().trial is None


HOURLY = """
[all]
margin = 0.1
[[all.calendar]]
from = "00:00"
to = "06:00"
margin = 0.4
confirm = 5
[[decode.calendar]]
from = "05:00"
to = "07:00"
margin = 0.5
[group.decode-1]
margin = 0.2
[[group.decode-1.calendar]]
from = "12:00"
to = "13:00"
margin = 0.6
[canary]
group = "decode-1"
[canary.try]
margin = 0.3
"""


def margins(document: PolicyDocument, group: str, phase: Phase = Phase.DECODE) -> list[float]:
    hours = (1, 5, 6, 12, 20)
    at = (policy_at(document, phase=phase, group=group, instant_s=hour * 3600.0) for hour in hours)
    return [found.config.margin for found in at]


def test_calendars_keep_their_hours_when_a_canary_is_promoted() -> None:
    document = parse_document(HOURLY)
    promoted = document.with_promoted(Phase.DECODE)
    assert document.tried_in_hours(Phase.DECODE) == ("margin",)
    assert margins(document, "decode-0") == [0.4, 0.5, 0.5, 0.1, 0.1]
    assert margins(promoted, "decode-0") == [0.4, 0.5, 0.5, 0.3, 0.3]
    assert margins(promoted, "decode-1") == [0.4, 0.5, 0.5, 0.6, 0.3]
    assert margins(promoted, "prefill-0", Phase.PREFILL) == margins(document, "prefill-0", Phase.PREFILL)
    # What the phase hid before from the calendar of all stays hidden.
    hidden = parse_document(
        HOURLY.replace("[[decode.calendar]]", "[decode]\nmargin = 0.7\n[[decode.calendar]]")
    )
    assert margins(hidden.with_promoted(Phase.DECODE), "decode-0") == [0.3, 0.5, 0.5, 0.3, 0.3]
    assert parse_document(promoted.to_toml()) == promoted


def test_layouts_that_a_group_does_not_offer_are_found_wherever_they_are_allowed() -> None:
    document = parse_document(
        '[decode]\nallowed = ["TP", "CP"]\n'
        '[[group.x.calendar]]\nfrom = "01:00"\nto = "02:00"\nallowed = ["DP", "DOP"]'
    )
    offered = (Layout.TP, Layout.DP)
    for group, layouts in (("x", (Layout.CP, Layout.DOP)), ("y", (Layout.CP,))):
        assert not_offered(document, phase=Phase.DECODE, group=group, offered=offered) == layouts
    assert not_offered(document, phase=Phase.PREFILL, group="y", offered=offered) == ()
    assert document.named_groups == {"group.x": "x"}
    assert parse_document(HOURLY).named_groups == {"group.decode-1": "decode-1", "canary.group": "decode-1"}


def test_the_canonical_text_means_the_same_and_says_nothing_twice() -> None:
    document = parse_document(FULL)
    text = document.to_toml()
    assert parse_document(text) == document
    assert parse_document(text).to_toml() == text
    assert parse_document(text).digest == document.digest
    shuffled = parse_document("[decode]\nmargin = 1\nconfirm = 3\n[all]\nshadow = true\n[prefill]\n[group.x]")
    same = parse_document("[all]\nshadow=true\n[decode]\nconfirm = 3\nmargin = 1.0")
    assert (shuffled, shuffled.digest) == (same, same.digest)
    assert shuffled.digest != document.digest


def test_off_and_auto_are_documents_too() -> None:
    assert load_document("auto") == PolicyDocument()
    assert PolicyDocument().to_toml().strip() == ""
    assert load_document("off").to_toml() == "[all]\nenabled = false\n"


_HOURS = 'from = "08:00"\nto = "09:00"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[group]\nx = 1", "group.x must be a section, [group.x]"),
        ("[group.x]\nmargn = 1", "group.x.margn: unknown key; known: allowed"),
        ("[decode]\npin = 'XP'", "decode.pin: 'XP' is not a layout; known: TP"),
        ("[decode]\npin = 3", "decode.pin: 3 is not a layout"),
        ("[decode]\nallowed = [3]", "decode.allowed: 3 is not a layout"),
        ("[decode]\nenabled = 'no'", "decode.enabled: true or false is required"),
        ("[decode]\ndwell_s = inf", "decode.dwell_s: a finite number is required"),
        (f"[decode]\ndwell_s = 1{'0' * 400}", "decode.dwell_s: a finite number is required"),
        (f"[decode]\nconfirm = 1{'0' * 400}", "decode.confirm: must be at least 1 and at most"),
        ("[decode]\nitl_bound_ms = 0", 'decode.itl_bound_ms: must be above 0, or "none"'),
        ("[decode]\ncalendar = 1", "decode.calendar: must be a list of entries"),
        ("[decode]\ncalendar = [1]", "decode.calendar[0] must be a section"),
        ("[[decode.calendar]]\nmargin = 1", "decode.calendar[0].from: missing"),
        (f"[[decode.calendar]]\n{_HOURS}", "decode.calendar[0]: changes no key"),
        (f"[[decode.calendar]]\n{_HOURS}margin = -1", "decode.calendar[0].margin: must be in"),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\nday = 1", "decode.calendar[0].day: unknown key"),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\ndays = ['monday']", "'monday' is not a day; known: mon"),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\ndays = []", "days: a list of days is required"),
        (
            f"[[decode.calendar]]\n{_HOURS}margin = 1\ntime_zone = 'Mars/Base'",
            "time_zone: 'Mars/Base' is not",
        ),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\ntime_zone = '../etc'", "time_zone: '../etc' is not"),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\ntime_zone = 'Europe'", "time_zone: 'Europe' is not"),
        (f"[[decode.calendar]]\n{_HOURS}margin = 1\ntime_zone = 2", "time_zone: a name such as"),
        ("[[all.calendar]]\nfrom = '8:00'\nto = '09:00'\nmargin = 1", 'from: a time from "00:00" to "23:59"'),
        (
            "[[all.calendar]]\nfrom = '24:00'\nto = '09:00'\nmargin = 1",
            'from: a time from "00:00" to "23:59"',
        ),
        ("[[all.calendar]]\nfrom = '08:60'\nto = '09:00'\nmargin = 1", "from: a time from"),
        ("[[all.calendar]]\nfrom = '08:00'\nto = '24:01'\nmargin = 1", 'to: a time from "00:00" to "24:00"'),
        ("[[all.calendar]]\nfrom = 08:00:00\nto = '24:00'\nmargin = 1", "from: a time from"),
        ("canary = 1", "canary must be a section"),
        ("[canary]\ngroup = 1", "canary.group: the name of one group is required"),
        ("[canary]\ngroup = 'x'", "canary.try: a section [canary.try]"),
        ("[canary]\ngroup = 'x'\n[canary.try]", "canary.try: names no key"),
        ("[canary]\ngroup = 'x'\n[canary.try]\nmarg = 1", "canary.try.marg: unknown key"),
        (
            "[canary]\ngroup = 'x'\nmetric = 'ttft'\n[canary.try]\nmargin = 1",
            "'ttft' is not one of tokens_per_s",
        ),
        (
            "[canary]\ngroup = 'x'\nperiod_s = 0\n[canary.try]\nmargin = 1",
            "canary.period_s: a number from 0.1",
        ),
        ("[canary]\ngroup = 'x'\nperiod_s = nan\n[canary.try]\nmargin = 1", "canary.period_s: a number"),
        (
            "[canary]\ngroup = 'x'\nmin_steps = 0\n[canary.try]\nmargin = 1",
            "canary.min_steps: a whole number",
        ),
        ("[canary]\ngroup = 'x'\nminutes = 3\n[canary.try]\nmargin = 1", "canary.minutes: unknown key"),
        ("[canary]\ngroup = 'x'\ntolerance = true\n[canary.try]\nmargin = 1", "canary.tolerance: a number"),
        (
            "[all]\nmargin = 1\nmargin = 2\nconfirm = 3",
            "Cannot overwrite a value (at line 3, column 11): margin = 2",
        ),
        ("[decode]\n[all]\n[decode]", "twice (at line 3, column 8): [decode]"),
        ("x = " + "[" * 20_000, "not TOML: nested too deeply"),
        ("x = " + "1" * 5_000, "not TOML"),
        ("#" * (MAX_DOCUMENT_BYTES + 1), f"longer than {MAX_DOCUMENT_BYTES} bytes"),
    ],
)
def test_errors_name_the_key_and_the_remedy(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_document(text, source="p.toml")
    assert str(raised.value).startswith("p.toml: ")
    assert words in str(raised.value)


def test_the_canonical_text_is_bounded_too() -> None:
    entry = '{from="00:00",to="00:01",pin="TP"}'
    text = f"[all]\ncalendar = [{','.join([entry] * 1_500)}]"
    assert len(text) < MAX_DOCUMENT_BYTES
    with pytest.raises(ConfigError, match="longer than"):
        parse_document(text)


@pytest.mark.parametrize(
    ("text", "group", "words"),
    [
        (FULL, "decode-0", "pin: decode-0 does not offer DOP; it offers TP, DP"),
        (
            FULL.replace('"TP", "DP"', '"CP"').replace("DOP", "DP"),
            "decode-0",
            "allowed: decode-0 offers none",
        ),
        (FULL.replace("DOP", "TP"), "decode-0", ""),
        ("[canary]\ngroup = 'a'\n[canary.try]\npin = 'CP'", "a", "pin: a does not offer CP"),
        ("[canary]\ngroup = 'a'\n[canary.try]\npin = 'CP'", "b", ""),
        (
            "[canary]\ngroup = 'a'\nmetric = 'ttft_ms'\n[canary.try]\nmargin = 0.1",
            "a",
            "canary.metric: decode",
        ),
        ("[canary]\ngroup = 'a'\nmetric = 'ttft_ms'\n[canary.try]\nmargin = 0.1", "b", ""),
    ],
)
def test_a_document_that_a_group_cannot_follow_is_told(text: str, group: str, words: str) -> None:
    document = parse_document(text)
    found = why_not(document, phase=Phase.DECODE, group=group, offered=(Layout.TP, Layout.DP))
    assert found.startswith(words)
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"a": {}},
        {"a": 1, "b": 0.1, "c": 1e-7, "d": True, "e": 'q"\\\n\x7f\x00é😀', "f": ["x", "y"]},
        {"a": {"b": {"c": 1}, "d": [{"x": 1}, {}, {"y": {"z": "…"}}]}, 'k "': {"x.y": {"": False}}},
    ],
)
def test_toml_comes_back_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_every_field_of_the_policy_is_a_key() -> None:
    assert {*PolicyConfig.__dataclass_fields__, "enabled", "pin"} == set(KEYS)
