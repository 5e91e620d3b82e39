"""The policy on the admin port over scripted groups: edits, errors, versions, groups that come back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splash_core.errors import InvalidRequest
from splash_core.pb import control_pb2
from tests.support.openai_conformance import error_of
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


@pytest.fixture
def router(folder: Path, http: httpx.Client) -> Iterator[RunningRouter]:
    with running_router(folder) as running:
        until(lambda: http.get(f"{running.url}/ready").status_code == 200)
        yield running


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Policy:
    """The policy's endpoints of one router."""

    def __init__(self, router: RunningRouter, http: httpx.Client) -> None:
        self.url, self.http, self.router = f"{router.admin_url}/admin/policy", http, router

    def get(self) -> dict[str, Any]:
        return self.http.get(self.url).json()

    def put(self, text: str, **fields: Any) -> httpx.Response:
        return self.http.put(self.url, content=text, **fields)

    def versions_of(self, phase: str) -> list[int]:
        group = getattr(self.router.backend, phase)
        return self.router.call(lambda: [request.version for request in group.policies])


@pytest.fixture
def policy(router: RunningRouter, http: httpx.Client) -> Policy:
    return Policy(router, http)


def test_without_a_policy_groups_keep_their_own(policy: Policy) -> None:
    told = policy.get()
    assert (told["policy"], told["version"], told["document"]) == ("own", None, None)
    assert [(group["version"], group["trouble"]) for group in told["groups"]] == [(0, None), (0, None)]
    assert policy.versions_of("decode") == []
    error_of(policy.http.get(f"{policy.url}/diff"), 404)
    assert policy.http.get(f"{policy.url}/versions").json() == {"versions": []}


def test_a_put_is_numbered_handed_over_and_shown(policy: Policy) -> None:
    answer = policy.put("[decode]\nmargin = 0.2\n[group.decode-7]\nshadow = true").json()
    assert (answer["version"], answer["changed"], answer["source"]) == (1, True, "admin API")
    assert [group["version"] for group in answer["groups"]] == [1, 1]
    assert [group["trouble"] for group in answer["groups"]] == [None, None]
    assert {change["key"] for change in answer["changes"]} == {"decode.margin", "group.decode-7.shadow"}
    (warning,) = answer["warnings"]
    assert "no group is called 'decode-7'" in warning
    assert [group["not_offered"] for group in answer["groups"]] == [[], []]
    told = policy.get()
    assert told["document"]["decode"] == {"margin": 0.2}
    assert told["groups"][1]["effective"]["margin"] == 0.2
    assert told["groups"][0]["effective"]["margin"] == 0.05
    assert policy.versions_of("decode") == [1]
    again = policy.put("[group.decode-7]\nshadow=true\n[decode]\nmargin=0.20").json()
    assert (again["version"], again["changed"]) == (1, False)
    metrics = policy.http.get(f"{policy.router.url}/metrics").text
    assert "splash_policy_version 1" in metrics
    until(
        lambda: (
            'splash_group_policy_version{group="decode-0",phase="decode"} 1'
            in policy.http.get(f"{policy.router.url}/metrics").text
        )
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[decode]\nmargn = 1", "decode.margn: unknown key"),
        (b"[decode", "not TOML"),
        (b"[decode]\npin = 'CP'", "pin: decode-0 does not offer CP; it offers TP"),
        (b"\xff", "not UTF-8"),
        (b"#" * 70_000, "longer than"),
    ],
)
def test_a_bad_body_changes_nothing_and_says_why(policy: Policy, body: bytes, words: str) -> None:
    policy.put("[all]\nmargin = 0.3")
    error = error_of(policy.http.put(policy.url, content=body), 400)
    assert words in error["message"]
    assert (error["param"], error["code"]) == ("policy", "invalid_policy")
    told = policy.get()
    assert (told["version"], told["document"]) == (1, {"all": {"margin": 0.3}})
    assert words in told["rejected"]["reason"]
    metrics = policy.http.get(f"{policy.router.url}/metrics").text
    assert 'splash_policy_rejected_total{source="admin"} 1' in metrics
    assert error_of(policy.http.put(policy.url, content=b"x" * 300_000), 413)


def test_json_means_the_same(policy: Policy) -> None:
    answer = policy.http.put(policy.url, json={"all": {"margin": 0.3}}).json()
    assert answer["version"] == 1
    assert policy.put("[all]\nmargin = 0.3").json()["changed"] is False
    twice = b'{"all": {"margin": 0.1, "confirm": 1, "margin": 0.2}}'
    headers = {"content-type": "application/json"}
    error = error_of(policy.http.put(policy.url, content=twice, headers=headers), 400)
    assert "key 'margin' stands twice" in error["message"]
    error = error_of(policy.http.put(policy.url, json={"all": {"margin": None}}), 400)
    assert "all.margin: a number is required" in error["message"]
    error_of(policy.http.put(policy.url, json=[1]), 400)


def test_a_dry_run_tells_and_changes_nothing(policy: Policy) -> None:
    answer = policy.put("[all]\nmargin = 0.3", params={"dry_run": "1"}).json()
    assert (answer["version"], answer["changed"], answer["dry_run"]) == (1, True, True)
    assert policy.get()["version"] is None
    error_of(policy.put("[all]\nmargin = -1", params={"dry_run": "1"}), 400)
    assert policy.get()["rejected"] is None
    assert error_of(policy.put("", params={"dry_run": "yes"}), 400)["param"] == "dry_run"


def test_an_edit_of_another_version_is_refused(policy: Policy) -> None:
    assert policy.put("[all]\nmargin = 0.3", headers={"if-match": '"0"'}).status_code == 200
    etag = policy.http.get(policy.url).headers["etag"]
    assert policy.put("[all]\nmargin = 0.4", headers={"if-match": etag}).status_code == 200
    stale = policy.put("[all]\nmargin = 0.5", headers={"if-match": etag})
    error = error_of(stale, 409)
    assert "version 2 is active, not 1; get it (`splash policy get`)" in error["message"]
    assert (error["type"], error["code"]) == ("conflict_error", "outdated")
    error_of(policy.put("[all]\nmargin = 0.5", params={"expected": "1"}), 409)
    assert error_of(policy.put("", params={"expected": "one"}), 400)["param"] == "expected"
    assert policy.put("[all]\nmargin = 0.5", headers={"if-match": "*"}).json()["version"] == 3


def test_versions_differences_and_the_way_back(policy: Policy) -> None:
    for margin in (0.1, 0.2, 0.3):
        policy.put(f"[all]\nmargin = {margin}")
    listed = policy.http.get(f"{policy.url}/versions").json()["versions"]
    assert [version["version"] for version in listed] == [1, 2, 3]
    assert policy.http.get(f"{policy.url}/versions/2").json()["document"] == {"all": {"margin": 0.2}}
    newest = policy.http.get(f"{policy.url}/diff").json()
    assert newest["changes"] == [{"key": "all.margin", "before": 0.2, "after": 0.3}]
    whole = policy.http.get(f"{policy.url}/diff", params={"from": "3", "to": "1"}).json()
    assert whole["changes"] == [{"key": "all.margin", "before": 0.3, "after": 0.1}]
    back = policy.http.post(f"{policy.url}/rollback", json={"version": 1}).json()
    assert (back["version"], back["source"]) == (4, "admin API, back to version 1")
    assert policy.get()["document"] == {"all": {"margin": 0.1}}
    error_of(policy.http.post(f"{policy.url}/rollback", json={"version": 9}), 404)
    error_of(policy.http.post(f"{policy.url}/rollback", json={"version": 1, "expected": 3}), 409)
    error_of(policy.http.get(f"{policy.url}/diff", params={"from": "x"}), 400)
    error_of(policy.http.get(f"{policy.url}/diff", params={"to": "1"}), 404)
    error_of(policy.http.get(f"{policy.url}/versions/{'9' * 30}"), 400)


def test_a_group_that_comes_back_gets_the_version_again(policy: Policy) -> None:
    policy.put("[all]\nmargin = 0.3")
    decode = policy.router.backend.decode

    def restart() -> None:
        decode.incarnation, decode.policy = "2", control_pb2.PolicyState()

    policy.router.call(restart)
    until(lambda: policy.versions_of("decode") == [1, 1])
    assert policy.versions_of("prefill") == [1]


def test_a_group_that_refuses_is_shown_and_not_asked_again_until_there_is_another_version(
    policy: Policy,
) -> None:
    decode = policy.router.backend.decode
    decode.policy_error = InvalidRequest("decode-0 reads it otherwise", param="digest")
    told = policy.put("[all]\nmargin = 0.3").json()["groups"][1]
    assert (told["version"], told["trouble"]) == (0, "decode-0 reads it otherwise")
    time.sleep(0.2)
    assert policy.versions_of("decode") == [1]
    decode.policy_error = None
    assert policy.put("[all]\nmargin = 0.4").json()["groups"][1]["version"] == 2


def test_a_router_counts_on_from_what_groups_have(folder: Path, http: httpx.Client) -> None:
    with running_router(folder, policy="auto") as router:
        policy = Policy(router, http)
        until(lambda: policy.versions_of("decode") == [1])

        def older() -> None:
            # As if an earlier router had come to 12; this one has met the group by now and does not fight.
            router.backend.decode.policy = control_pb2.PolicyState(version=12, digest="other")

        router.call(older)
        until(lambda: policy.get()["groups"][1]["version"] == 12)
        assert policy.put("[all]\nmargin = 0.4").json()["version"] == 13


def test_a_watched_file_is_taken_when_valid_and_told_when_not(
    folder: Path, http: httpx.Client, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[all]\nmargin = 0.1")
    with running_router(folder, policy=str(path)) as router:
        policy = Policy(router, http)
        assert policy.get()["source"] == f"file {path}"
        path.write_text("[all]\nmargin = 0.2")
        until(lambda: policy.get()["version"] == 2)
        path.write_text("[all]\nmargin = -2")
        until(lambda: policy.get()["file"]["error"] is not None)
        told = policy.get()
        assert "all.margin: must be in [0, 10), got -2" in told["file"]["error"]
        assert (told["version"], told["document"]) == (2, {"all": {"margin": 0.2}})
        path.unlink()
        until(lambda: "No such file" in policy.get()["file"]["error"])
        # What is put stays until the file says something new.
        assert policy.put("[all]\nmargin = 0.5").json()["version"] == 3
        path.write_text("[all]\nmargin = 0.25")
        until(lambda: policy.get()["version"] == 4)
        assert policy.get()["file"] == {"path": str(path), "error": None}
        metrics = http.get(f"{router.url}/metrics").text
        assert 'splash_policy_rejected_total{source="file"} 2' in metrics


CANARY = """
[canary]
group = "decode-0"
period_s = 0.3
min_steps = 10
[canary.try]
margin = 0.4
[[all.calendar]]
from = "03:00"
to = "03:01"
margin = 0.9
"""


@pytest.mark.parametrize(
    ("later_s", "verdict", "margin"), [(0.01, "PROMOTE", 0.4), (0.02, "ROLL_BACK", None)]
)
def test_a_canary_alone_is_tried_compared_and_concluded(
    policy: Policy, later_s: float, verdict: str, margin: float | None
) -> None:
    decode = policy.router.backend.decode

    def work() -> None:
        """Twenty steps; slower while the group tries."""
        step_s = later_s if decode.policy.trying else 0.01
        for name, amount in (("steps", 20), ("rows", 160), ("sequences", 160)):
            setattr(decode.totals, name, getattr(decode.totals, name) + amount)
        decode.totals.step_s += 20 * step_s
        decode.totals.sequence_s += 160 * step_s

    assert policy.put(CANARY).json()["version"] == 1
    stages: set[str] = set()

    def ended() -> bool:
        policy.router.call(work)
        told = policy.get()
        stages.add(told["canary"]["stage"] if told["canary"] else "ended")
        return bool(told["canaries"])

    until(ended)
    assert {"watching", "trying"} <= stages
    told = policy.get()
    record = told["canaries"][0]
    assert (record["verdict"], record["comparison"]["against"]) == (verdict, "by itself before")
    assert (told["version"], told["document"].get("decode", {}).get("margin")) == (2, margin)
    assert record["reason"].endswith("; in their hours calendars set margin as before") == (
        margin is not None
    )
    assert told["source"].startswith("canary of decode-0: ")
    until(lambda: policy.versions_of("decode")[-1] == 2)
    shown = policy.http.get(f"{policy.router.admin_url}/admin/decisions?last=5&phase=decode").json()
    assert verdict in [entry.get("verdict") for entry in shown]


def test_layouts_that_no_group_offers_are_told(policy: Policy) -> None:
    answer = policy.put('[decode]\nallowed = ["TP", "CP"]').json()
    assert answer["warnings"] == ["allowed: CP without effect for decode-0; its --layouts do not offer it"]
    groups = policy.get()["groups"]
    assert {group["phase"]: group["not_offered"] for group in groups} == {"prefill": [], "decode": ["CP"]}


def test_an_edit_supersedes_a_canary_that_runs(policy: Policy) -> None:
    policy.put(CANARY.replace("0.3\n", "300\n"))
    until(lambda: (policy.get()["canary"] or {}).get("stage") == "watching")
    policy.put("[all]\nmargin = 0.6")
    told = policy.get()
    assert told["canary"] is None
    assert (told["canaries"][0]["verdict"], told["version"]) == ("SUPERSEDED", 2)


@pytest.mark.parametrize(
    ("query", "header", "status"),
    [
        ("?dryrun=1", {}, 400),
        ("?dry-run=1", {}, 400),
        ("?expected=7", {"if-match": "*"}, 409),
        ("?expected=7", {"if-match": '"0"'}, 400),
        ("", {"if-match": '"7"'}, 409),
    ],
)
def test_an_edit_that_is_not_surely_wanted_changes_nothing(
    policy: Policy, query: str, header: dict[str, str], status: int
) -> None:
    before = policy.get()["version"]
    answer = policy.http.put(f"{policy.url}{query}", content="[all]\nmargin = 0.3", headers=header)
    error_of(answer, status)
    assert policy.get()["version"] == before
