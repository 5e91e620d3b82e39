"""A leader takes a whole valid version over the wire, or none: what it refuses and why."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from splash_core.config import GroupSettings
from splash_core.errors import ConfigError, GroupFailed, SplashError
from splash_core.layout.layout import Layout
from splash_core.leader.build import draw_blueprint
from splash_core.leader.control import ControlServicer
from splash_core.leader.leader import GroupCondition, GroupLeader
from splash_core.pb import common_pb2, control_pb2
from splash_core.policy.document import parse_document
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.snapshot import Phase
from splash_core.rpc.errors import DETAIL_KEY, from_detail


class Context:
    """Raises the error that a call ends with."""

    async def abort(self, status: grpc.StatusCode, text: str, *, trailing_metadata: Any) -> None:
        del text
        ((key, detail),) = trailing_metadata
        assert key == DETAIL_KEY
        raise from_detail(common_pb2.ErrorDetail.FromString(detail), status)


class Steering:
    """Takes every version at once."""

    def __init__(self, policy: PolicyInForce) -> None:
        self.policy = policy
        self.pinned: Layout | None = None

    def set_policy(self, policy: PolicyInForce) -> "asyncio.Future[None]":
        self.policy = policy
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer


class Group:
    """A decode group that offers TP and DP."""

    def __init__(self, model: Path) -> None:
        settings = GroupSettings(model=str(model), page_size=8, kv_bytes=1 << 19, layouts="TP,DP")
        blueprint = draw_blueprint(settings, Phase.DECODE)
        self.steering = Steering(blueprint.policy)
        self.leader = SimpleNamespace(
            failure=None, condition=GroupCondition.READY, steering=self.steering, wake=lambda: None
        )
        self._control = ControlServicer(blueprint, cast("GroupLeader", self.leader))

    def take(self, text: str, *, digest: str | None = None, trying: bool = False) -> control_pb2.PolicyState:
        digest = parse_document(text).digest if digest is None else digest
        request = control_pb2.SetPolicyRequest(version=7, digest=digest, document=text, trying=trying)
        context = cast("grpc.aio.ServicerContext", Context())
        return asyncio.run(self._control.SetPolicy(request, context)).policy


@pytest.fixture
def group(tiny_v3: Path) -> Group:
    return Group(tiny_v3)


def test_a_version_is_taken_with_its_number_and_its_trial(group: Group) -> None:
    text = "[decode]\npin = 'DP'\n[canary]\ngroup = 'decode-0'\n[canary.try]\nmargin = 0.5"
    told = group.take(text, trying=True)
    assert (told.version, told.digest, told.trying) == (7, parse_document(text).digest, True)
    found = group.steering.policy.at(0.0)
    assert (found.pin, found.config.margin) == (Layout.DP, 0.5)


@pytest.mark.parametrize(
    ("text", "digest", "words"),
    [
        ("[decode]\nmargin = -1", "x", r"policy version 7: decode.margin: must be in \[0, 10\)"),
        ("[decode]\nmargin = 1", "x", "give router and groups the same version of Splash"),
        ("[decode]\npin = 'CP'", None, "policy version 7: pin: decode-0 does not offer CP; it offers TP, DP"),
        ("[all]\nallowed = ['CP']", None, "allowed: decode-0 offers none of CP"),
    ],
)
def test_what_is_not_whole_and_valid_for_the_group_changes_nothing(
    group: Group, text: str, digest: str | None, words: str
) -> None:
    before = group.steering.policy
    with pytest.raises(SplashError, match=words):
        group.take(text, digest=digest)
    assert group.steering.policy is before
    assert before.number == 0


def test_a_group_that_starts_or_has_ended_says_so(group: Group) -> None:
    group.leader.condition = GroupCondition.STARTING
    with pytest.raises(SplashError, match="is starting"):
        group.take("")
    group.leader.failure = GroupFailed("rank 1 died")
    with pytest.raises(GroupFailed, match="rank 1 died"):
        group.take("")


def test_a_file_that_pins_what_the_group_does_not_offer_is_refused_at_start(
    tiny_v3: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[decode]\npin = 'CP'")
    settings = GroupSettings(
        model=str(tiny_v3), page_size=8, kv_bytes=1 << 19, layouts="TP,DP", policy=str(file)
    )
    with pytest.raises(ConfigError, match="pin: decode-0 does not offer CP"):
        draw_blueprint(settings, Phase.DECODE)
    assert draw_blueprint(settings, Phase.PREFILL).policy.number == 0
