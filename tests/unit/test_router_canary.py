"""What a router makes of a canary's end, and which groups it lets try."""

from typing import Any, cast

import pytest

from services.router.metrics import Metrics
from services.router.policy_canary import CanaryWatch
from services.router.policy_delivery import PolicyOrder
from services.router.policy_keeper import PolicyKeeper
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import InvalidRequest
from splash_core.pb import control_pb2
from splash_core.policy.document import parse_document

TEXT = "[canary]\ngroup = 'd1'\nperiod_s = 1\nmin_steps = 5\n[canary.try]\n"


class World:
    """Two decode groups, of which only d1 offers DOP, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.offers = {"d0": ("TP",), "d1": ("TP", "DOP")}
        self.refused: dict[str, str] = {}
        """Groups that the router does not give requests, and why."""
        self.keeper = PolicyKeeper(cast("Registry", self), Metrics(), wall=lambda: 1000.0 + self.now)
        self.canary = CanaryWatch(self.keeper, clock=lambda: self.now, wall=lambda: 1000.0 + self.now)

    def records(self) -> list[GroupRecord]:
        return [self._record(name, *layouts) for name, layouts in self.offers.items()]

    def _record(self, name: str, *layouts: str) -> GroupRecord:
        return GroupRecord(
            address=name,
            phase="decode",
            clash=self.refused.get(name),
            description=control_pb2.GroupDescription(
                group=name,
                phase="decode",
                layouts=[control_pb2.LayoutFeasibility(layout=layout, feasible=True) for layout in layouts],
            ),
            state=control_pb2.GroupState(
                group=name,
                phase="decode",
                incarnation="1",
                totals=control_pb2.StepTotals(steps=self.steps, rows=self.steps, step_s=0.1 * self.steps),
            ),
        )

    def in_force(self, record: GroupRecord) -> PolicyOrder:
        active = self.keeper.active
        assert active is not None
        return PolicyOrder(active.number, active.digest, self.canary.tries(record))

    def run(self, seconds: int) -> None:
        for _ in range(seconds * 10):
            self.now += 0.1
            self.steps += 1
            self.canary.look(self.records(), self.in_force)

    def put(self, text: str) -> None:
        self.keeper.apply(parse_document(text), source="test")

    @property
    def trying(self) -> list[str]:
        return [record.label for record in self.records() if self.canary.tries(record)]


def test_only_the_group_that_is_named_tries_and_only_while_it_does() -> None:
    world = World()
    assert world.trying == []
    world.put(TEXT + "margin = 0.5")
    assert world.trying == []
    world.canary.look(world.records(), world.in_force)
    assert world.trying == ["d1"]
    told: dict[str, Any] = world.canary.to_json() or {}
    assert (told["stage"], told["try"]) == ("trying", {"margin": 0.5})
    world.run(3)
    assert world.trying == []
    assert world.canary.to_json() is None
    active = world.keeper.active
    assert active is not None
    assert (active.number, active.source) == (2, "canary of d1: promoted")
    assert active.document == parse_document("[decode]\nmargin = 0.5")
    record = world.canary.records("decode")[0]
    assert (record["verdict"], record["comparison"]["against"]) == ("PROMOTE", "by d0")
    assert record["time"] > 1000.0
    assert world.canary.records("prefill") == []


def test_a_group_that_is_refused_is_nobody_to_be_compared_with() -> None:
    world = World()
    world.refused["d0"] = "another group is called so"
    world.put(TEXT + "margin = 0.5")
    world.run(3)
    (record,) = world.canary.records("decode")
    assert record["comparison"]["against"] == "by itself before"


def test_what_another_group_of_the_phase_cannot_follow_is_not_promoted() -> None:
    world = World()
    world.put(TEXT + "pin = 'DOP'")
    world.run(3)
    record = world.canary.records()[0]
    assert record["verdict"] == "ROLL_BACK"
    assert "not promoted: policy: pin: d0 does not offer DOP" in record["reason"]
    active = world.keeper.active
    assert active is not None
    assert active.document == parse_document("")


def test_a_canary_ends_even_where_a_group_has_come_that_cannot_follow_its_document() -> None:
    world = World()
    world.put("[decode]\nallowed = ['TP']\n" + TEXT + "margin = 0.5")
    world.offers = {"d0": ("TP",), "d1": ("TP",), "d2": ("CP",)}
    world.run(3)
    assert [record["verdict"] for record in world.canary.records()] == ["ROLL_BACK"]
    assert world.keeper.active is not None
    assert world.keeper.active.document == parse_document("[decode]\nallowed = ['TP']")


def test_a_document_that_a_known_group_cannot_follow_is_refused_whole() -> None:
    world = World()
    world.put("[decode]\nmargin = 0.5")
    with pytest.raises(InvalidRequest, match="pin: d0 does not offer DOP; it offers TP"):
        world.put("[all]\npin = 'DOP'")
    assert world.keeper.active is not None
    assert world.keeper.active.number == 1
    world.put("[group.d1]\npin = 'DOP'")


def test_a_superseded_canary_leaves_the_new_version_alone() -> None:
    world = World()
    world.put(TEXT + "margin = 0.5")
    world.canary.look(world.records(), world.in_force)
    world.put("[all]\nmargin = 0.25")
    assert world.trying == []
    world.run(3)
    assert [record["verdict"] for record in world.canary.records()] == ["SUPERSEDED"]
    assert world.keeper.active is not None
    assert world.keeper.active.document == parse_document("[all]\nmargin = 0.25")


def test_a_canary_goes_on_when_its_version_is_only_renumbered() -> None:
    world = World()
    world.put(TEXT + "margin = 0.5")
    world.run(1)
    assert world.trying == ["d1"]
    world.keeper.heard_of(7, "other", first=True)
    assert world.keeper.active is not None
    assert world.keeper.active.number == 8
    assert world.trying == ["d1"]
    world.run(3)
    assert [record["verdict"] for record in world.canary.records()] == ["PROMOTE"]
