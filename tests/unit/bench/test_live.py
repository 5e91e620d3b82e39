"""A running stack as benchmarks ask it: what is sent to the admin port, and what it is started with."""

from collections.abc import Iterator

import openai
import pytest

from services.admin_client import AdminClient
from services.bench.burst_rows import arms_of
from services.bench.burst_settings import BurstSettings
from services.bench.live import HOLD_S, BenchStack, everywhere
from services.bench.live_settings import LiveSettings
from services.bench.rollout_settings import RolloutSettings
from splash_core.config import UpSettings, resolve
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.leader.build import DEFAULT_LAYOUT
from splash_core.policy.snapshot import Phase
from tests.support.admin_port import Admin


@pytest.fixture
def admin() -> Iterator[Admin]:
    server = Admin()
    server.answers |= {f"POST /admin/{word}": (200, {}) for word in ("pin", "unpin", "layout")}
    yield server
    server.close()


@pytest.fixture
def stack(admin: Admin) -> Iterator[BenchStack]:
    with AdminClient(admin.url, "") as client, openai.OpenAI(base_url=admin.url, api_key="none") as asked:
        yield BenchStack(client=asked, admin=client, admin_url=admin.url, pids={}, model="m")


def _asked(admin: Admin) -> list[tuple[str, dict[str, object]]]:
    return [(path.rpartition("/")[2], body) for _, path, body, _ in admin.asked]


def test_a_layout_that_is_held_is_pinned_phase_by_phase(admin: Admin, stack: BenchStack) -> None:
    [arm] = arms_of("TP/DOP")
    stack.hold(arm.layouts)
    expected: list[tuple[str, dict[str, object]]] = []
    for phase, layout in (("prefill", "TP"), ("decode", "DOP")):
        of_phase: dict[str, object] = {"phase": phase}
        expected += [
            ("unpin", of_phase),
            ("layout", of_phase | {"layout": layout, "hold_s": HOLD_S}),
            ("pin", of_phase | {"layout": layout}),
        ]
    assert _asked(admin) == expected


def test_the_policy_begins_where_services_start_and_is_free_at_once(admin: Admin, stack: BenchStack) -> None:
    stack.let_go()
    assert _asked(admin) == [
        ask
        for phase in Phase
        for ask in (
            ("unpin", {"phase": phase}),
            ("layout", {"phase": phase, "layout": DEFAULT_LAYOUT[phase], "hold_s": 0.0}),
        )
    ]


def test_going_into_a_layout_asks_for_nothing_else(admin: Admin, stack: BenchStack) -> None:
    stack.go(everywhere(Layout.CP))
    assert _asked(admin) == [
        ("layout", {"phase": phase, "layout": "CP", "hold_s": HOLD_S}) for phase in ("prefill", "decode")
    ]


def test_switches_are_counted_over_all_groups(admin: Admin, stack: BenchStack) -> None:
    groups = [{"group": "prefill-0", "layout_epoch": 2}, {"group": "decode-0", "layout_epoch": 7}]
    admin.answers["GET /admin/cluster"] = (200, {"groups": groups})
    assert stack.epochs() == {"prefill-0": 2, "decode-0": 7}
    assert stack.switched_since({"prefill-0": 1, "decode-0": 5}) == 3


def test_idleness_is_when_no_page_is_held(admin: Admin, stack: BenchStack) -> None:
    admin.answers["GET /admin/audit"] = (200, {"pages_held": 0})
    stack.await_idle()
    assert [path for _, path, _, _ in admin.asked] == ["/admin/audit"]


def test_defaults_are_those_of_splash_up_on_free_ports_and_without_checks_of_answers() -> None:
    expected = UpSettings(model="smollm2-mla", port=0, admin_port=0, canary_every_s=0.0)
    assert LiveSettings().stack() == expected


@pytest.mark.parametrize("kind", [RolloutSettings, BurstSettings])
def test_every_benchmark_of_a_stack_says_what_it_computes_on(kind: type[LiveSettings]) -> None:
    said = {
        "device": "cuda",
        "prefill_gpus": "0,1",
        "decode_gpus": "2,3",
        "memory_fraction": 0.45,
        "load_format": "dummy",
    }
    settings = resolve(kind, flags={**said, "run_dir": "logs"}, environ={})
    up = settings.stack(layouts="TP,DP")
    assert {name: getattr(up, name) for name in said} == said
    assert (up.run_dir, up.layouts, up.prefill_ranks, up.decode_ranks) == ("logs", "TP,DP", 2, 2)
    assert settings.told().items() >= said.items()
    assert not {"out", "label", "commit", "run_dir"} & settings.told().keys()
    with pytest.raises(ConfigError, match="GPU numbers"):
        resolve(kind, flags={"decode_gpus": "a"}, environ={})


def test_a_rollout_may_have_its_answers_checked() -> None:
    assert RolloutSettings(canary_every_s=5.0).stack().canary_every_s == 5.0
    assert "profile" not in RolloutSettings().told(without=("profile",))
