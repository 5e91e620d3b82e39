"""The admin port over scripted groups: shapes, switches, refusals, drain."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.commands.router import router_config
from splash_core.config import RouterSettings
from splash_core.errors import ConfigError
from tests.support.openai_conformance import error_of
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def router(folder: Path, http: httpx.Client) -> Iterator[RunningRouter]:
    with running_router(folder, policy="auto") as running:
        end = time.monotonic() + 5
        while http.get(f"{running.url}/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


def test_cluster_has_the_promised_fields(router: RunningRouter, http: httpx.Client) -> None:
    groups = http.get(f"{router.admin_url}/admin/cluster").json()["groups"]
    assert [(group["group"], group["phase"], group["state"]) for group in groups] == [
        ("prefill-0", "prefill", "ready"),
        ("decode-0", "decode", "ready"),
    ]
    promised = {"group", "phase", "state", "layout", "layout_epoch", "incarnation", "ranks", "steps"}
    promised |= {"running", "waiting", "kv_tokens_used", "kv_tokens_total"}
    assert all(promised <= set(group) for group in groups)


def test_layouts_say_why_not(router: RunningRouter, http: httpx.Client) -> None:
    groups = http.get(f"{router.admin_url}/admin/layouts").json()["groups"]
    reasons = {entry["layout"]: entry["reason"] for entry in groups[0]["layouts"] if not entry["feasible"]}
    assert reasons == {"CP": "not in this fake"}


def test_switch_and_switch_to_the_same(router: RunningRouter, http: httpx.Client) -> None:
    url = f"{router.admin_url}/admin/layout"
    moved = http.post(url, json={"phase": "decode", "layout": "DOP", "mode": "blocking"}).json()
    assert moved == {
        "group": "decode-0",
        "from": "DP",
        "to": "DOP",
        "layout_epoch": 1,
        "mode": "blocking",
        "exposed_ms": 0.0,
        "bytes": 4096,
        "precopied_bytes": 0,
        "fallback": None,
    }
    body = {"phase": "decode", "group": "decode-0", "layout": "DOP", "hold_s": 0}
    same = http.post(url, json=body).json()
    assert (same["from"], same["to"], same["bytes"], same["layout_epoch"]) == ("DOP", "DOP", 0, 1)
    assert router.backend.decode.holds == [None, 0.0]


def test_refused_switch_is_a_409_with_numbers(router: RunningRouter, http: httpx.Client) -> None:
    answer = http.post(f"{router.admin_url}/admin/layout", json={"phase": "decode", "layout": "CP"})
    assert "12 pages in borrowed slots" in error_of(answer, 409)["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"phase": "encode", "layout": "TP"}, 404, "phase"),
        ({"phase": "decode", "group": "decode-7", "layout": "TP"}, 404, "group"),
        ({"phase": "decode"}, 400, "layout"),
        ({"phase": "decode", "layout": 3}, 400, "layout"),
        ({"phase": "decode", "layout": "TP", "speed": "fast"}, 400, "speed"),
    ],
)
def test_bad_orders(
    router: RunningRouter, http: httpx.Client, body: dict[str, object], status: int, param: str
) -> None:
    assert error_of(http.post(f"{router.admin_url}/admin/layout", json=body), status)["param"] == param


def test_pin_and_unpin(router: RunningRouter, http: httpx.Client) -> None:
    pin = {"phase": "prefill", "layout": "TP"}
    for path in ("/admin/pin", "/admin/layout/pin"):
        answer = http.post(f"{router.admin_url}{path}", json=pin).json()
        assert answer == {"group": "prefill-0", "pinned": "TP"}
    other = http.post(f"{router.admin_url}/admin/layout", json={"phase": "prefill", "layout": "DP"})
    blocked = error_of(other, 409)
    assert (blocked["code"], blocked["message"]) == (
        "blocked",
        "the group is pinned to TP; unpin it first",
    )
    for path in ("/admin/unpin", "/admin/layout/unpin"):
        answer = http.post(f"{router.admin_url}{path}", json={"phase": "prefill"}).json()
        assert answer == {"group": "prefill-0", "pinned": None}


def test_decisions_policy_console(router: RunningRouter, http: httpx.Client) -> None:
    records = http.get(f"{router.admin_url}/admin/decisions?last=5").json()
    assert {record["group"] for record in records} == {"prefill-0", "decode-0"}
    assert len(http.get(f"{router.admin_url}/admin/decisions?last=1").json()) == 1
    assert error_of(http.get(f"{router.admin_url}/admin/decisions?last=x"), 400)["param"] == "last"
    bundles = http.get(f"{router.admin_url}/admin/decisions/bundle?last=5&phase=decode").json()
    assert bundles == {"groups": [{"group": "decode-0", "phase": "decode", "bundle": {}}]}
    assert error_of(http.get(f"{router.admin_url}/admin/decisions/bundle?last=0"), 400)["param"] == "last"
    assert error_of(http.get(f"{router.admin_url}/admin/decisions?phase=foo"), 400)["param"] == "phase"
    for query in ("decisions?phse=decode", "cluster?last=1", "audit?page=1", "policy?dry_run=1"):
        assert error_of(http.get(f"{router.admin_url}/admin/{query}"), 400)["code"] == "unknown_parameter"
    assert http.get(f"{router.admin_url}/admin/policy").json()["policy"] == "auto"
    page = http.get(router.admin_url)
    assert page.headers["content-type"].startswith("text/html")
    assert "/admin/cluster" in page.text
    error_of(http.get(f"{router.admin_url}/admin/nothing"), 404)
    error_of(http.get(f"{router.admin_url}/admin/requests/none/timeline"), 404)


def test_the_stages_of_a_request_add_up_to_its_time(router: RunningRouter, http: httpx.Client) -> None:
    answer = http.post(f"{router.url}/v1/chat/completions", json=CHAT)
    found = http.get(f"{router.admin_url}/admin/requests/{answer.json()['id']}/timeline").json()
    for sequence in found["sequences"]:
        assert sequence["finished"]
        assert list(sequence["stages"]) == ["queue_s", "prefill_s", "transfer_s", "wait_s", "decode_s"]
        assert sum(sequence["stages"].values()) == pytest.approx(sequence["total_s"], rel=0.01)


def test_an_audit_lists_pages_only_when_asked(router: RunningRouter, http: httpx.Client) -> None:
    for query in ("", "?pages=0", "?pages=1"):
        groups = http.get(f"{router.admin_url}/admin/audit{query}").json()["groups"]
        assert [group["pushes"] for group in groups] == [[], []]
    assert error_of(http.get(f"{router.admin_url}/admin/audit?pages=all"), 400)["param"] == "pages"


def test_admin_is_not_on_the_gateway(router: RunningRouter, http: httpx.Client) -> None:
    for path in ("/admin/cluster", "/admin/audit", "/"):
        error_of(http.get(f"{router.url}{path}"), 404)
    error_of(http.post(f"{router.admin_url}/v1/completions", json={}), 404)


def test_drain_refuses_the_new_and_reports(router: RunningRouter, http: httpx.Client) -> None:
    assert http.post(f"{router.url}/v1/chat/completions", json=CHAT).status_code == 200
    answer = http.post(f"{router.admin_url}/admin/drain", json={"deadline_s": 5}).json()
    assert answer == {"drained": True, "left": 0}
    assert router.backend.prefill.drained
    assert router.backend.decode.drained
    refused = http.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert "draining" in error_of(refused, 503)["message"]
    assert "draining" in error_of(http.get(f"{router.url}/ready"), 503)["message"]
    assert http.get(f"{router.admin_url}/admin/audit").json()["pages_held"] == 0
    assert http.post(f"{router.admin_url}/admin/drain").json()["drained"] is True


def test_router_settings_become_its_own(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "api.key").write_text("secret\n")
    settings = RouterSettings(
        model=str(folder), prefill="a:1, b:2", decode="unix:/x", api_key_file=str(tmp_path / "api.key")
    )
    config = router_config(settings)
    assert (config.prefill, config.decode) == (("a:1", "b:2"), ("unix:/x",))
    assert (config.api_key, config.admin_key) == ("secret", None)
    assert config.model_name == folder.name
    with pytest.raises(ConfigError, match="key file"):
        router_config(dataclasses.replace(settings, api_key_file=str(tmp_path / "none")))


@pytest.mark.parametrize("seconds", ["-1", "NaN", "Infinity", "1e300", '"5"'])
def test_times_that_are_none_are_refused(router: RunningRouter, http: httpx.Client, seconds: str) -> None:
    switch = f'{{"phase": "decode", "layout": "DOP", "hold_s": {seconds}}}'
    for path, content in (("layout", switch), ("drain", f'{{"deadline_s": {seconds}}}')):
        answer = http.post(f"{router.admin_url}/admin/{path}", content=content)
        assert error_of(answer, 400)["param"] in ("hold_s", "deadline_s")
    assert router.call(lambda: (router.backend.decode.holds, router.backend.decode.drained)) == ([], False)
