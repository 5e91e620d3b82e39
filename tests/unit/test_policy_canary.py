"""A canary waits, watches where it is alone, tries, compares, and ends with one record."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from splash_core.policy.canary import CanaryState, Moment, Seen, Stage, advance, superseded
from splash_core.policy.canary_record import CanaryRecord, CanaryVerdict
from splash_core.policy.snapshot import Phase
from splash_core.policy.step_totals import StepTotals
from splash_core.policy.trial import Better, Metric, Trial

TRIAL = Trial(group="d1", values={"margin": 0.3}, period_s=10.0, min_steps=50)


class World:
    """Groups that make ten steps a second, and a canary that watches them."""

    def __init__(self, *groups: str, trial: Trial = TRIAL, phase: Phase = Phase.DECODE) -> None:
        self.trial = trial
        self.time_s = 0.0
        self.state: CanaryState | CanaryRecord = CanaryState()
        self.groups = {
            name: Seen(phase=phase, incarnation="1", trying=False, totals=StepTotals()) for name in groups
        }
        self.step_s: dict[str, float] = dict.fromkeys(groups, 0.01)
        self.obeys = True

    def run(self, seconds: int) -> "World":
        for _ in range(seconds * 2):
            self.time_s += 0.5
            for name, seen in self.groups.items():
                totals = seen.totals
                for _ in range(5):
                    totals = totals.with_step(rows=8, sequences=8, step_s=self.step_s[name])
                    if seen.phase is Phase.PREFILL:
                        totals = totals.with_prompt(ttft_s=2 * self.step_s[name])
                self.groups[name] = replace(seen, totals=totals)
            self.look()
        return self

    def look(self) -> None:
        if isinstance(self.state, CanaryRecord):
            return
        self.state = advance(self.state, self.trial, Moment(time_s=self.time_s, groups=self.groups))
        trying = isinstance(self.state, CanaryState) and self.state.trying and self.obeys
        for name, seen in self.groups.items():
            self.groups[name] = replace(seen, trying=trying and name == self.trial.group)

    @property
    def stage(self) -> Stage:
        assert isinstance(self.state, CanaryState), self.state
        return self.state.stage

    @property
    def record(self) -> CanaryRecord:
        assert isinstance(self.state, CanaryRecord), self.state
        return self.state


def test_beside_others_it_tries_at_once_and_is_promoted_when_no_worse() -> None:
    world = World("d0", "d1", "d2")
    assert world.run(1).stage is Stage.TRYING
    record = world.run(12).record
    assert record.verdict is CanaryVerdict.PROMOTE
    assert record.comparison is not None
    assert record.comparison.against == "by d0, d2"
    assert record.comparison.tried == pytest.approx(800.0)
    assert record.comparison.change == pytest.approx(0.0)
    assert record.comparison.steps[1] == 2 * record.comparison.steps[0]


def test_every_metric_says_which_values_are_better() -> None:
    more = [metric for metric in Metric if metric.better is Better.MORE]
    assert more == [Metric.TOKENS_PER_S]
    assert {Metric(metric.value).better for metric in Metric if metric not in more} == {Better.LESS}


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(
    ("step_s", "verdict"), [(0.0101, "PROMOTE"), (0.0109, "ROLL_BACK"), (0.005, "PROMOTE")]
)
def test_worse_by_more_than_the_tolerance_is_rolled_back(metric: Metric, step_s: float, verdict: str) -> None:
    world = World("d0", "d1", trial=replace(TRIAL, metric=metric), phase=Phase.PREFILL)
    world.run(1).step_s["d1"] = step_s
    record = world.run(12).record
    assert record.verdict == verdict
    assert ("% worse, " in record.reason) is (step_s > 0.01)
    assert "2.0% worse is tolerated" in record.reason


@pytest.mark.parametrize(("step_s", "verdict"), [(0.02, "ROLL_BACK"), (0.008, "PROMOTE")])
def test_alone_it_is_compared_with_itself_before(step_s: float, verdict: str) -> None:
    world = World("d1")
    world.groups["p0"] = replace(world.groups["d1"], phase=Phase.PREFILL)
    world.step_s["p0"] = 0.01
    assert world.run(10).stage is Stage.WATCHING
    assert world.run(1).stage is Stage.TRYING
    world.step_s["d1"] = step_s
    record = world.run(12).record
    assert record.verdict == verdict
    assert record.comparison is not None
    assert record.comparison.against == "by itself before"
    assert record.comparison.reference == pytest.approx(800.0)


def test_it_waits_for_its_group_and_for_the_group_to_take_the_change() -> None:
    world = World("d0")
    assert world.run(100).stage is Stage.WAITING
    world.groups["d1"], world.step_s["d1"] = world.groups["d0"], 0.01
    world.obeys = False
    assert world.run(30).stage is Stage.TRYING
    record = world.run(20).record
    assert (record.verdict, record.comparison) == (CanaryVerdict.ROLL_BACK, None)
    assert "did not take" in record.reason


def test_steps_before_the_change_do_not_count() -> None:
    world = World("d0", "d1")
    world.obeys = False
    world.step_s["d1"] = 1.0
    world.run(5)
    world.obeys = True
    world.look()
    world.step_s["d1"] = 0.01
    assert world.run(11).record.verdict is CanaryVerdict.PROMOTE


def test_a_quiet_period_goes_on_and_is_given_up_in_the_end() -> None:
    world = World("d0", "d1", trial=replace(TRIAL, min_steps=1_000_000))
    assert world.run(39).stage is Stage.TRYING
    record = world.run(5).record
    assert record.verdict is CanaryVerdict.ROLL_BACK
    assert "too few steps to compare" in record.reason
    assert "by d0; 1000000 are required" in record.reason
    alone = World("d1", trial=replace(TRIAL, min_steps=1_000_000)).run(45).record
    assert "before the trial" in alone.reason


def test_first_tokens_are_compared_over_prompts_and_only_prefill_groups_have_them() -> None:
    trial = replace(TRIAL, metric=Metric.TTFT_MS)
    record = World("d0", "d1", trial=trial).run(1).record
    assert (record.verdict, record.phase) == (CanaryVerdict.ROLL_BACK, Phase.DECODE)
    assert "decode groups draw no first token, so d1 has no ttft_ms; give another metric" in record.reason
    world = World("d0", "d1", trial=trial, phase=Phase.PREFILL)
    record = world.run(13).record
    assert record.comparison is not None
    assert record.comparison.tried == pytest.approx(20.0)
    assert record.comparison.prompts[0] == record.comparison.steps[0] >= 50
    assert record.to_json()["comparison"]["prompts"] == list(record.comparison.prompts)
    few = World("d0", "d1", trial=replace(trial, min_steps=1_000_000), phase=Phase.PREFILL)
    assert "too few prompts to compare" in few.run(45).record.reason


def test_a_restart_of_its_group_ends_it_and_one_of_a_peer_leaves_that_peer_out() -> None:
    world = World("d0", "d1", "d2").run(2)
    world.groups["d0"] = replace(world.groups["d0"], incarnation="2", totals=StepTotals())
    record = world.run(12).record
    assert record.comparison is not None
    assert record.comparison.against == "by d2"
    world = World("d0", "d1").run(2)
    world.groups["d1"] = replace(world.groups["d1"], incarnation="2", totals=StepTotals())
    assert "restarted while it tried" in world.run(1).record.reason


def test_a_restart_while_it_is_watched_begins_anew() -> None:
    world = World("d1").run(8)
    world.groups["d1"] = replace(world.groups["d1"], incarnation="2", totals=StepTotals())
    assert world.run(8).stage is Stage.WATCHING
    assert world.run(4).stage is Stage.TRYING


def test_a_group_that_goes_away_and_one_that_lost_all_peers_are_rolled_back() -> None:
    for gone, words in (("d1", "0 here"), ("d0", "by nobody")):
        world = World("d0", "d1").run(2)
        del world.groups[gone]
        record = world.run(50).record
        assert record.verdict is CanaryVerdict.ROLL_BACK
        assert words in record.reason


def test_a_record_says_all_in_the_shape_of_a_decision() -> None:
    record = World("d0", "d1").run(13).record.to_json()
    assert {"time", "phase", "group", "verdict", "reason", "from", "to"} <= set(record)
    assert (record["phase"], record["group"], record["tried"]) == ("decode", "d1", {"margin": 0.3})
    comparison: Mapping[str, object] = record["comparison"]
    assert {"metric", "tried", "reference", "against", "change", "tolerance"} <= set(comparison)
    ended = superseded(CanaryState(), TRIAL, time_s=3.0, by="version 4").to_json()
    assert (ended["verdict"], ended["phase"], ended["comparison"]) == ("SUPERSEDED", None, None)
