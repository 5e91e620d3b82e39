"""A version of the policy comes into force at a boundary, whole, and keeps what is still true."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from splash_core.errors import Conflict, GroupFailed
from splash_core.ids import Epoch, StepId
from splash_core.layout.layout import Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.document import parse_document
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.step import StepPlan
from splash_core.switch.manifest import SwitchMode
from tests.unit.test_steering import Bench, held_policy
from tests.unit.test_steering import _switched as switched_event

EAGER = PolicyConfig(confirm=1, dwell_s=0.0, margin=0.0, interval_s=0.0)


def _in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario()

    asyncio.run(run())


def _version(number: int, text: str = "") -> PolicyInForce:
    document = parse_document(text)
    return PolicyInForce(
        phase=Phase.DECODE, group="decode-0", document=document, number=number, digest=document.digest
    )


def test_a_version_is_in_force_from_the_next_boundary_on_and_every_record_names_it() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9, policy=EAGER)
        answer = bench.steering.set_policy(_version(3, "[all]\nshadow = true\ninterval_s = 0\nmargin = 0"))
        assert bench.steering.policy.number == 0
        bench.boundary(Layout.DP)
        await answer
        assert bench.steering.policy.number == 3
        bench.boundary(Layout.DP)
        bench.boundary(Layout.DP)
        records = bench.steering.decisions(0)
        assert {record.inputs["policy_version"] for record in records} == {3}
        assert "shadow" in [record.cause for record in records]
        assert bench.scheduler.asked == []

    _in_loop(scenario)


def test_records_of_two_versions_are_not_taken_together() -> None:
    async def scenario() -> None:
        bench = Bench(policy=EAGER)
        pin = "[all]\npin = 'TP'\ninterval_s = 0"
        for number in (1, 2):
            bench.steering.set_policy(_version(number, f"{pin}\nconfirm = {number}"))
            for _ in range(3):
                bench.boundary(Layout.TP)
        assert [record.inputs["policy_version"] for record in bench.steering.decisions(0)] == [1, 2]
        assert [record.inputs["repeats"] for record in bench.steering.decisions(0)] == [3, 3]

    _in_loop(scenario)


def test_versions_that_do_not_follow_are_refused_and_a_later_one_answers_the_earlier() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = bench.steering.set_policy(_version(3))
        with pytest.raises(Conflict, match=r"version 3 .* is in force"):
            bench.steering.set_policy(_version(2))
        second = bench.steering.set_policy(_version(4, "[all]\nmargin = 1"))
        bench.boundary()
        with pytest.raises(Conflict, match="superseded by policy version 4"):
            await first
        await second
        with pytest.raises(Conflict, match="does not follow"):
            bench.steering.set_policy(_version(4, "[all]\nmargin = 2"))
        # A repetition is welcome: the answer to the first may have been lost.
        again = bench.steering.set_policy(_version(4, "[all]\nmargin = 1"))
        bench.boundary()
        await again

    _in_loop(scenario)


def test_dwell_budget_and_a_hold_by_hand_outlive_a_version() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9, policy=EAGER)
        bench.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=5.0).cancel()
        bench.steering.set_policy(_version(1, "[all]\nmargin = 0\nconfirm = 1\ndwell_s = 20\ninterval_s = 0"))
        bench.boundary(Layout.DP)
        causes: list[str] = []
        for now in (4.0, 6.0, 21.0):
            bench.now = now
            bench.boundary(Layout.DP)
            causes.append(bench.steering.decisions(1)[0].cause)
        assert causes == ["manual_hold", "dwell", "lead"]

    _in_loop(scenario)


@pytest.mark.parametrize(
    ("text", "cause"), [("dwell_s = 0.0", "lead"), ("horizon_steps = 500", "confirming")]
)
def test_a_streak_outlives_a_version_that_compares_alike(text: str, cause: str) -> None:
    async def scenario() -> None:
        base = {"confirm": 2, "interval_s": 0, "margin": 0.0}
        config = PolicyConfig(confirm=2, interval_s=0.0, margin=0.0)
        bench = Bench(*[None] * 9, policy=config, enabled=True)
        bench.boundary(Layout.DP)
        assert bench.steering.decisions(1)[0].cause == "confirming"
        keys = {**base, **dict([text.split(" = ")])}
        lines = "\n".join(f"{name} = {value}" for name, value in keys.items())
        bench.steering.set_policy(_version(1, f"[all]\n{lines}"))
        bench.boundary(Layout.DP)
        assert bench.steering.decisions(1)[0].cause == cause

    _in_loop(scenario)


def test_a_pin_of_the_document_holds_and_one_by_hand_goes_before_it() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9, policy=PolicyConfig(dwell_s=0.0, interval_s=0.0))
        bench.steering.set_policy(_version(1, "[decode]\npin = 'DOP'\nenabled = false\ndwell_s = 0"))
        bench.boundary(Layout.TP)
        assert bench.steering.pinned is Layout.DOP
        assert bench.scheduler.asked == [Layout.DOP]
        bench.steering.pin(Layout.CP)
        bench.boundary(Layout.DOP)
        assert bench.scheduler.asked == [Layout.DOP, Layout.CP]
        bench.steering.pin(None)
        assert bench.steering.pinned is Layout.DOP
        bench.steering.set_policy(_version(2))
        bench.boundary(Layout.CP)
        assert bench.steering.pinned is None
        assert not bench.steering.watches

    _in_loop(scenario)


PINNED = "[decode]\npin = 'DOP'\nenabled = false\ndwell_s = 0\ninterval_s = 0\nhold_s = 30"


def switched(bench: Bench, layout: Layout, now: float) -> None:
    """The scheduler has carried out what was asked."""
    bench.scheduler.layout = layout
    bench.now = now
    plan = StepPlan(step=StepId(1), epoch=Epoch(4), layout=layout)
    bench.steering.on_switched(switched_event(layout, Layout.DOP), plan, paused_s=0.0)


def test_a_set_goes_before_a_pin_of_the_document_and_the_pin_returns_after_its_hold() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9)
        bench.steering.set_policy(_version(1, PINNED))
        bench.boundary(Layout.DOP)
        assert bench.steering.pinned is Layout.DOP
        answer = bench.steering.set_layout(Layout.TP, SwitchMode.BLOCKING, hold_s=None)
        bench.boundary(Layout.DOP)
        assert bench.scheduler.asked == [Layout.TP]
        switched(bench, Layout.TP, 1.0)
        assert (await answer).layout_to is Layout.TP
        for now in (2.0, 29.0):
            bench.now = now
            bench.boundary(Layout.TP)
            assert (bench.steering.pinned, bench.scheduler.asked) == (None, [Layout.TP])
        bench.now = 30.5
        bench.boundary(Layout.TP)
        assert (bench.steering.pinned, bench.scheduler.asked) == (Layout.DOP, [Layout.TP, Layout.DOP])

    _in_loop(scenario)


@pytest.mark.parametrize("text", [PINNED, PINNED.replace("DOP", "CP")])
def test_what_a_new_version_pins_holds_at_once(text: str) -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9)
        bench.steering.set_policy(_version(1, PINNED))
        bench.boundary(Layout.DOP)
        bench.steering.set_layout(Layout.TP, SwitchMode.BLOCKING, hold_s=None)
        switched(bench, Layout.TP, 1.0)
        bench.steering.set_policy(_version(2, text))
        bench.boundary(Layout.TP)
        assert bench.steering.pinned is (Layout.DOP if text is PINNED else Layout.CP)

    _in_loop(scenario)


def test_a_pin_waits_for_a_set_that_is_under_way_and_returns_where_it_is_refused() -> None:
    async def scenario() -> None:
        bench = Bench(None, Conflict("no"), None)
        bench.steering.set_policy(_version(1, PINNED))
        bench.boundary(Layout.DOP)
        answer = bench.steering.set_layout(Layout.TP, SwitchMode.PRECOPIED, hold_s=0.0)
        bench.now = 5.0
        bench.boundary(Layout.DOP)
        assert (bench.steering.pinned, bench.scheduler.asked) == (None, [Layout.TP])
        bench.now = 6.0
        bench.boundary(Layout.DOP)
        with pytest.raises(Conflict, match="no"):
            await answer
        bench.now = 7.0
        bench.boundary(Layout.DOP)
        assert bench.steering.pinned is Layout.DOP

    _in_loop(scenario)


def test_a_set_to_where_the_document_pins_the_group_leaves_the_pin() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9)
        bench.steering.set_policy(_version(1, PINNED))
        bench.boundary(Layout.DOP)
        bench.steering.set_layout(Layout.DOP, SwitchMode.BLOCKING, hold_s=None)
        bench.boundary(Layout.DOP)
        assert bench.steering.pinned is Layout.DOP

    _in_loop(scenario)


def test_a_calendar_comes_and_goes_by_the_clock() -> None:
    bench = Bench(
        *[None] * 9,
        policy=EAGER,
    )
    text = '[all]\nenabled = false\n[[all.calendar]]\nfrom = "00:01"\nto = "00:02"\npin = "CP"'

    async def scenario() -> None:
        bench.steering.set_policy(_version(1, text))
        pins: list[Any] = []
        for now in (0.0, 59.0, 61.0, 119.0, 121.0):
            bench.now = now
            bench.boundary(Layout.CP)
            pins.append(bench.steering.pinned)
        assert pins == [None, None, Layout.CP, Layout.CP, None]
        assert bench.steering.watches

    _in_loop(scenario)


def test_a_pin_that_the_calendar_brings_again_holds_within_the_hold_of_a_set() -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9)
        hours = "[[decode.calendar]]\nfrom = '00:01'\nto = '00:02'\npin = 'CP'"
        pinned = PINNED.replace("hold_s = 30", "hold_s = 600")
        bench.steering.set_policy(_version(1, f"{pinned}\n{hours}"))
        bench.boundary(Layout.DOP)
        bench.steering.set_layout(Layout.TP, SwitchMode.BLOCKING, hold_s=None)
        bench.boundary(Layout.DOP)
        switched(bench, Layout.TP, 1.0)
        pins: list[Any] = []
        for now in (2.0, 61.0, 121.0):
            bench.now = now
            bench.boundary(Layout.TP)
            pins.append(bench.steering.pinned)
        assert pins == [None, Layout.CP, Layout.DOP]

    _in_loop(scenario)


def test_the_end_of_a_group_answers_a_version_on_its_way() -> None:
    async def scenario() -> None:
        bench = Bench()
        answer = bench.steering.set_policy(_version(1))
        bench.steering.fail(GroupFailed("rank 0 died"))
        with pytest.raises(GroupFailed):
            await answer

    _in_loop(scenario)


def test_the_policy_that_a_group_is_started_with_is_number_zero() -> None:
    bench = Bench(policy=EAGER)
    assert bench.steering.policy == held_policy(EAGER, enabled=False)
    assert bench.steering.policy.number == 0


@pytest.mark.parametrize("text", ["enabled = false", "shadow = true"])
def test_a_policy_that_no_longer_decides_lifts_the_limit_of_chunks_and_sets_none(text: str) -> None:
    async def scenario() -> None:
        bench = Bench(*[None] * 9, policy=EAGER, enabled=True)
        bench.boundary()
        assert bench.scheduler.chunks[-1] is not None
        bench.steering.set_policy(_version(1, f"[all]\n{text}\ninterval_s = 0"))
        for _ in range(3):
            bench.boundary()
        assert bench.scheduler.chunks[-1] is None

    _in_loop(scenario)
