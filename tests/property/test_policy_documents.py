"""Whatever is edited: what is in force was valid as a whole, numbers grow, and every text means one thing."""

import asyncio
import json
import random
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.metrics import Metrics
from services.router.policy_file import PolicyFile
from services.router.policy_keeper import PolicyKeeper
from services.router.registry import Registry
from splash_core.errors import ConfigError, Conflict
from splash_core.layout.layout import Layout
from splash_core.policy.calendar import DAYS, read_hours
from splash_core.policy.config import policy_at
from splash_core.policy.document import PolicyDocument, parse_document, read_document
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.snapshot import Phase
from splash_core.policy.toml import to_toml
from splash_core.policy.versions import changes
from tests.support.policy_edits import invalid_text, valid_canary, valid_table
from tests.unit.test_steering import Bench

randoms = st.randoms(use_true_random=False)
instants = st.floats(min_value=0, max_value=4e9, allow_nan=False)


class NoGroups:
    """A registry of nobody."""

    def records(self) -> list[Any]:
        return []


def keeper() -> PolicyKeeper:
    return PolicyKeeper(cast("Registry", NoGroups()), Metrics(), wall=lambda: 0.0)


def document_of(draw: random.Random) -> PolicyDocument:
    table = valid_table(draw)
    if draw.random() < 0.3:
        table["canary"] = valid_canary(draw, group="decode-0")
    return parse_document(to_toml(table))


@given(randoms)
def test_a_valid_document_has_one_canonical_form(draw: random.Random) -> None:
    document = document_of(draw)
    again = parse_document(document.to_toml())
    assert again == document
    assert again.to_toml() == document.to_toml()
    as_json = json.loads(json.dumps(document.to_plain(), allow_nan=False))
    assert read_document(as_json) == document
    assert read_document(as_json).digest == document.digest


@given(randoms, instants)
def test_a_valid_document_says_something_of_every_group_at_every_time(
    draw: random.Random, instant_s: float
) -> None:
    document = document_of(draw)
    for phase, group in ((Phase.PREFILL, "prefill-0"), (Phase.DECODE, "decode-0"), (Phase.DECODE, "x")):
        found = policy_at(document, phase=phase, group=group, instant_s=instant_s, trying=True)
        pins = document.ever("pin", phase=phase, group=group)
        assert found.pin is None or found.pin in pins
        assert set(found.config.allowed) <= set(Layout)


@given(randoms)
def test_differences_lead_from_one_document_to_the_other(draw: random.Random) -> None:
    before, after = document_of(draw), document_of(draw)
    found = changes(before, after)
    assert bool(found) is (before.digest != after.digest)
    flat = {change.key: (change.before, change.after) for change in found}
    assert {change.key: (change.after, change.before) for change in changes(after, before)} == flat
    assert all(old != new for old, new in flat.values())


@given(randoms, st.lists(st.booleans(), min_size=1, max_size=20))
def test_edits_by_file_and_by_hand_leave_the_last_valid_one(draw: random.Random, valid: list[bool]) -> None:
    async def scenario() -> None:
        subject, texts = keeper(), [""]
        subject.apply(PolicyDocument(), source="start")
        file = PolicyFile("p.toml", subject, taken="", on_change=lambda: None, read=lambda _: texts[-1])
        expected, numbers = PolicyDocument(), [1]
        for fine in valid:
            text = to_toml(valid_table(draw)) if fine else invalid_text(draw)
            if draw.random() < 0.5:
                if fine and text != texts[-1]:
                    expected = parse_document(text)
                texts.append(text)
                await file.look()
                await file.look()
            else:
                try:
                    subject.apply(parse_document(text), source="admin API")
                    expected = parse_document(text)
                    assert fine
                except ConfigError:
                    assert not fine
            assert subject.active is not None
            assert subject.active.document == expected
            numbers.append(subject.active.number)
        assert numbers == sorted(numbers)
        assert numbers[-1] <= 1 + sum(valid)

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.booleans()), max_size=30))
def test_what_a_leader_has_in_force_only_grows(orders: list[tuple[int, int, bool]]) -> None:
    async def scenario() -> None:
        bench = Bench()
        taken = bench.steering.policy
        in_force = [taken.number]
        for number, margin, boundary in orders:
            document = parse_document(f"[all]\nenabled = false\nmargin = {margin}")
            policy = PolicyInForce(
                phase=Phase.DECODE,
                group="decode-0",
                document=document,
                number=number,
                digest=document.digest,
            )
            follows = number > taken.number or (number, document.digest) == (taken.number, taken.digest)
            try:
                bench.steering.set_policy(policy).add_done_callback(lambda done: done.exception())
                taken = policy
                assert follows
            except Conflict:
                assert not follows
            if boundary:
                bench.boundary()
                assert bench.steering.policy == taken
            in_force.append(bench.steering.policy.number)
        assert in_force == sorted(in_force)

    asyncio.run(scenario())


@given(
    days=st.sets(st.integers(0, 6), min_size=1),
    start=st.integers(0, 1439),
    end=st.integers(0, 1440),
    minute=st.integers(0, 3 * 7 * 1440),
)
@settings(max_examples=300)
def test_hours_in_utc_are_intervals_of_the_week(days: set[int], start: int, end: int, minute: int) -> None:
    entry = {
        "days": [DAYS[day] for day in days],
        "from": f"{start // 60:02}:{start % 60:02}",
        "to": f"{end // 60:02}:{end % 60:02}",
    }
    length = end - start if start < end else end + 1440 - start
    # The epoch began on a Thursday.
    of_week = (minute + 3 * 1440) % (7 * 1440)
    expected = any((of_week - (1440 * day + start)) % (7 * 1440) < length for day in days)
    assert read_hours(entry, where="c").hold(60.0 * minute) is expected
