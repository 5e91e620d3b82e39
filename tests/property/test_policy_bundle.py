"""What a policy saw and concluded survives JSON exactly, and decides the same again."""

import json
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.cost.model import CostModel
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.bundle import EvaluationRecorder, bundle_of, replay
from splash_core.policy.codec import decode, encode
from splash_core.policy.config import PolicyConfig
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState
from splash_core.spec.catalogue import CATALOGUE, named_spec
from tests.property.test_policy_properties import configs, layouts, snapshots
from tests.support.policy_cases import cost_model, decoding, snapshot

MODEL = cost_model()
floats = st.floats(allow_nan=False)
states = st.builds(
    PolicyState,
    pinned=st.none() | layouts,
    hold_until_s=st.none() | floats,
    last_switch_s=st.none() | st.floats(-1e6, 1e6),
    spent=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 10)), max_size=3).map(tuple),
    candidate=st.none() | layouts,
    streak=st.integers(0, 9),
)


def through_text(value: object) -> object:
    return json.loads(json.dumps(encode(value), allow_nan=False))


@settings(max_examples=100, deadline=None)
@given(seen=snapshots(), config=configs, state=states)
def test_arguments_survive_text(seen: Snapshot, config: PolicyConfig, state: PolicyState) -> None:
    assert decode(Snapshot, through_text(seen)) == seen
    assert decode(PolicyConfig, through_text(config)) == config
    assert decode(PolicyState, through_text(state)) == state


@pytest.mark.parametrize("name", CATALOGUE)
def test_models_survive_text(name: str) -> None:
    model = cost_model(named_spec(name), gpu="h200", dtype="fp8", ranks=8)
    assert decode(CostModel, through_text(model)) == model


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0, 3), snapshots()), min_size=1, max_size=6),
    config=configs,
    state=states,
)
def test_a_bundle_replays_bit_for_bit(
    steps: list[tuple[float, Snapshot]], config: PolicyConfig, state: PolicyState
) -> None:
    recorder, time = EvaluationRecorder(MODEL), 0.0
    for pause, seen in steps:
        time += pause
        _, state = recorder.decide(replace(seen, time_s=time), config, state)
    bundle = json.loads(json.dumps(bundle_of(recorder.model, recorder.newest()), allow_nan=False))
    assert replay(bundle) == (len(steps), [])


class TestReplay:
    def bundle(self) -> dict[str, object]:
        recorder, state = EvaluationRecorder(MODEL, capacity=3), PolicyState()
        for tick in range(5):
            seen = snapshot(decoding(1, 1500), time_s=float(tick))
            _, state = recorder.decide(seen, PolicyConfig(confirm=2), state)
        return json.loads(json.dumps(bundle_of(recorder.model, recorder.newest())))

    def test_the_newest_are_kept(self) -> None:
        bundle = self.bundle()
        assert replay(bundle) == (3, [])
        recorder = EvaluationRecorder(MODEL)
        assert replay(bundle_of(recorder.model, recorder.newest())) == (0, [])

    def test_a_difference_is_named(self) -> None:
        bundle = self.bundle()
        entries: list[dict[str, dict[str, dict[str, float]]]] = bundle["evaluations"]  # type: ignore[assignment]
        ms = entries[1]["decision"]["predicted_ms"]["TP"]
        entries[1]["decision"]["predicted_ms"]["TP"] = math.nextafter(ms, math.inf)
        _, (difference,) = replay(bundle)
        assert (difference.index, difference.path) == (1, "decision.predicted_ms.TP")
        assert "evaluation 1 at 3.000 s, decision.predicted_ms.TP: recorded" in str(difference)

    def test_a_whole_number_where_a_float_belongs_is_no_difference(self) -> None:
        """The sum of nothing is 0 to Python, and is read back as 0.0."""
        bundle = self.bundle()
        entries: list[dict[str, dict[str, object]]] = bundle["evaluations"]  # type: ignore[assignment]
        entries[1]["before"]["spent"], entries[1]["after"]["spent"] = [[2.5, 0.0]], [[2.5, 0]]
        assert replay(bundle) == (3, [])
        entries[1]["after"]["spent"] = [[2.5, 1]]
        _, (difference,) = replay(bundle)
        assert difference.path == "after.spent[0][1]"

    def test_no_text_of_a_request_is_in_it(self) -> None:
        text = json.dumps(self.bundle())
        assert "prompt_tokens" not in text or "tokens" in text
        assert all(word not in text for word in ('"prompt":', '"text"', "request_id"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"splash_bundle": 1},
                "is of version 1, and version 3 is read here; replay it with",
            ),
            ({"model": None}, r"bundle\.model: CostModel is required"),
            ({"evaluations": {}}, r"bundle\.evaluations: a list"),
            ({"evaluations": [{}]}, r"evaluations\[0\]: no evaluation"),
        ],
    )
    def test_what_is_no_bundle_is_named(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            replay({**self.bundle(), **change})
        with pytest.raises(ConfigError, match="names no version, and version 3 is read here"):
            replay([])


@dataclass(frozen=True)
class _Odd:
    number: float
    layout: Layout
    pair: tuple[int, str]
    maybe: int | None = None


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"number": "x", "layout": "TP", "pair": [1, "a"], "maybe": None}, r"bundle\.number: float"),
        ({"number": 1.0, "layout": "PP", "pair": [1, "a"], "maybe": None}, r"bundle\.layout: Layout"),
        ({"number": 1.0, "layout": "TP", "pair": [1], "maybe": None}, r"bundle\.pair: 1 items where 2"),
        ({"number": 1.0, "layout": "TP", "pair": [True, "a"], "maybe": None}, r"bundle\.pair\[0\]: int"),
        ({"number": 1.0, "layout": "TP", "pair": [1, "a"]}, "_Odd differs in maybe"),
        ([], "_Odd is required"),
    ],
)
def test_a_wrong_tree_is_named_with_its_place(tree: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(_Odd, tree)


def test_infinities_are_numbers_too() -> None:
    odd = _Odd(-math.inf, Layout.CP, (3, "b"), 4)
    assert decode(_Odd, through_text(odd)) == odd
