"""`splash layout` and `splash audit` against an admin port: output, exit codes, key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli import main
from splash_core.policy.bundle import EvaluationRecorder, bundle_of
from splash_core.policy.config import PolicyConfig
from splash_core.policy.state import PolicyState
from tests.support.admin_port import Admin
from tests.support.policy_cases import cost_model, decoding, snapshot


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    server = Admin()
    monkeypatch.setenv("SPLASH_ADMIN", server.url)
    monkeypatch.delenv("SPLASH_ADMIN_KEY", raising=False)
    yield server
    server.close()


def _splash(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["splash", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


SWITCH = {
    "group": "decode-0",
    "from": "DP",
    "to": "DOP",
    "layout_epoch": 3,
    "mode": "overlapped",
    "exposed_ms": 1.5,
    "bytes": 2048,
}


def test_set_sends_phase_group_layout_mode_and_prints_the_answer(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["POST /admin/layout"] = (200, SWITCH)
    code = _splash(monkeypatch, "layout", "set", "decode/decode-0", "dop", "--mode", "blocking", "--json")
    assert code == 0
    assert json.loads(capsys.readouterr().out) == SWITCH
    assert admin.asked[0][2] == {
        "phase": "decode",
        "group": "decode-0",
        "layout": "DOP",
        "mode": "blocking",
    }
    assert _splash(monkeypatch, "layout", "set", "decode", "DOP", "--hold-s", "0") == 0
    assert admin.asked[1][2] == {"phase": "decode", "layout": "DOP", "hold_s": 0.0}
    assert "DP → DOP (overlapped), epoch 3, 2.00 KiB moved, 1.5 ms exposed" in capsys.readouterr().out


def test_set_tells_what_was_copied_ahead_and_why_not(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "rank 1 needs 9 free slots for second copies of its pages, has 4"
    admin.answers["POST /admin/layout"] = (200, {**SWITCH, "precopied_bytes": 4096, "fallback": reason})
    assert _splash(monkeypatch, "layout", "set", "decode", "DOP", "--mode", "precopied") == 0
    assert admin.asked[0][2]["mode"] == "precopied"
    text = capsys.readouterr().out
    assert "2.00 KiB moved after 4.00 KiB copied ahead" in " ".join(text.split())
    assert f"not precopied: {reason}" in text


@pytest.mark.parametrize(("status", "code"), [(409, 3), (400, 2), (404, 2), (401, 2), (503, 1), (500, 1)])
def test_exit_codes_follow_the_status_and_the_message_is_shown(
    status: int,
    code: int,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin.answers["POST /admin/layout"] = (status, {"error": {"message": "needs 5 slots, 2 are free"}})
    assert _splash(monkeypatch, "layout", "set", "decode", "DP") == code
    assert "needs 5 slots, 2 are free" in capsys.readouterr().err


def test_get_says_which_group_is_out_and_why(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"phase": "decode", "group": "d0", "layout": "TP", "layout_epoch": 0, "state": "ready"}
    admin.answers["GET /admin/layouts"] = (200, {"groups": []})
    for cause, end in (("serves other weights", "\n         out: serves other weights\n"), (None, "ready\n")):
        admin.answers["GET /admin/cluster"] = (200, {"groups": [group | {"cause": cause}]})
        assert _splash(monkeypatch, "layout", "get") == 0
        assert capsys.readouterr().out.endswith(end)


def test_an_unknown_phase_is_bad_usage(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _splash(monkeypatch, "layout", "set", "decoder", "DP") == 2
    assert admin.asked == []


def test_nobody_there_is_a_failure_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _splash(monkeypatch, "audit", "--admin", "http://127.0.0.1:1") == 1
    assert "splash up" in capsys.readouterr().err


@pytest.mark.parametrize(("held", "code"), [(0, 0), (7, 1)])
def test_audit_fails_when_anything_is_held(
    held: int,
    code: int,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rank = {"rank": 0, "slots": 9, "free": 1, "weights": 2, "kv": 3, "quarantined": 0, "precopied": 0}
    lease = {"lease": "i/1", "state": "claimed", "owner": "r", "writer": "", "pages": 3, "age_s": 1.25}
    group = {"group": "decode-0", "phase": "decode", "layout": "DP", "layout_epoch": 0}
    push = {"push": 4, "owner": "q", "lease": "j/2", "pages": 2, "age_s": 0.5}
    lists = {"ranks": [rank], "leases": [lease], "pushes": [push]}
    report = {"pages_held": held, "groups": [{**group, **lists}]}
    admin.answers["GET /admin/audit"] = (200, report)
    assert _splash(monkeypatch, "audit", "--json") == code
    assert json.loads(capsys.readouterr().out) == report
    assert _splash(monkeypatch, "audit") == code
    text = capsys.readouterr().out
    assert f"{held} pages held" in text
    assert "lease i/1: claimed, owner r, writer none, 3 pages, 1.2 s" in text
    assert "push 4: owner q, into lease j/2, 2 pages, 0.5 s" in text
    assert "page 5" not in text


def test_audit_shows_every_page_when_asked(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"group": "decode-0", "phase": "decode", "layout": "DP", "layout_epoch": 0}
    base = {"state": "leased", "owner": "r", "age_s": 2.0}
    pages = [
        {**base, "page": 5, "slots": [7, -1], "lease": "i/1", "writer": "w", "pushes": []},
        {**base, "page": 6, "slots": [3, 4], "lease": "", "writer": "", "pushes": [8, 9]},
    ]
    report = {
        "pages_held": 2,
        "groups": [{**group, "ranks": [], "leases": [], "pushes": [], "pages": pages}],
    }
    admin.answers["GET /admin/audit?pages=1"] = (200, report)
    assert _splash(monkeypatch, "audit", "--pages") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "page 5: leased, owner r, 2.0 s, at rank 0 slot 7, lease i/1 of writer w" in text
    assert "page 6: leased, owner r, 2.0 s, at rank 0 slot 3, rank 1 slot 4, read by push 8, 9" in text


def test_explain_shows_predicted_times_and_the_key_is_sent(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {
        "phase": "decode",
        "verdict": "SWITCH",
        "from": "DP",
        "to": "TP",
        "reason": "TP leads by 12%",
        "predicted_ms": {"TP": 10.0, "DP": 11.25},
    }
    admin.answers["GET /admin/decisions?last=3"] = (200, [record])
    monkeypatch.setenv("SPLASH_ADMIN_KEY", "secret")
    assert _splash(monkeypatch, "layout", "explain", "--last", "3") == 0
    text = capsys.readouterr().out
    assert "DP → TP" in text
    assert "TP 10.0 ms, DP 11.2 ms" in text
    assert admin.asked[0][3] == "Bearer secret"


@pytest.mark.parametrize("hold_s", ["nan", "inf", "-5", "-0.1"])
def test_a_hold_is_a_number_of_seconds(admin: Admin, monkeypatch: pytest.MonkeyPatch, hold_s: str) -> None:
    assert _splash(monkeypatch, "layout", "set", "decode", "DP", "--hold-s", hold_s) == 2
    assert _splash(monkeypatch, "layout", "explain", "--last", "0") == 2
    assert admin.asked == []


@pytest.mark.parametrize(
    "url", ["nonsense", "127.0.0.1:8001", "ftp://x", "http://", "http://x:99999", "http://[x"]
)
def test_an_admin_url_that_is_none_is_bad_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("SPLASH_ADMIN", url)
    assert _splash(monkeypatch, "layout", "get") == 2
    assert f"SPLASH_ADMIN: '{url}' is not a URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        (404, {"error": {"message": "Unknown request URL", "code": "unknown_url"}}),
        (404, {"detail": "Not Found"}),
        (502, "oops"),
    ],
)
def test_another_server_is_told_from_an_admin_port(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: tuple[int, Any]
) -> None:
    admin.answers["GET /admin/layouts"] = answer
    assert _splash(monkeypatch, "layout", "get") == 2
    assert "is no admin port" in capsys.readouterr().err


def test_a_bundle_is_written_and_replayed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recorder = EvaluationRecorder(cost_model())
    recorder.decide(snapshot(decoding(1, 1500)), PolicyConfig(), PolicyState())
    answer = {
        "groups": [
            {"group": "decode-0", "phase": "decode", "bundle": bundle_of(recorder.model, recorder.newest())}
        ]
    }
    admin.answers["GET /admin/decisions/bundle?last=9"] = (200, json.loads(json.dumps(answer)))
    file = tmp_path / "decisions.json"
    assert _splash(monkeypatch, "layout", "explain", "--last", "9", "--bundle", str(file)) == 0
    assert "1 evaluations" in capsys.readouterr().out
    assert _splash(monkeypatch, "layout", "replay", str(file)) == 0
    assert "1 evaluations replayed, bit for bit the same" in capsys.readouterr().out
    file.write_text(file.read_text().replace('"streak": 1', '"streak": 2'))
    assert _splash(monkeypatch, "layout", "replay", str(file), "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["evaluations"] == 1
    assert "after.streak: recorded 2, replayed 1" in report["differences"][0]
    empty = tmp_path / "empty.json"
    empty.write_text('{"groups": []}')
    assert _splash(monkeypatch, "layout", "replay", str(empty)) == 2
    assert _splash(monkeypatch, "layout", "replay", str(tmp_path / "none.json")) == 2
    file.write_text("[]")
    assert _splash(monkeypatch, "layout", "replay", str(file)) == 2


def test_audit_lists_groups_that_could_not_be_asked_and_fails(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"group": "prefill-0", "phase": "prefill", "layout": "DP", "layout_epoch": 0, "pages_held": 0}
    cause = "group decode-0 (h:1) does not answer: see its log, restart it at the same address"
    report = {
        "pages_held": None,
        "groups": [{**group, "ranks": [], "leases": [], "pushes": []}],
        "not_asked": [{"group": "decode-0", "phase": "decode", "cause": cause}],
    }
    admin.answers["GET /admin/audit"] = (200, report)
    assert _splash(monkeypatch, "audit") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "0 pages held by groups that answer; 1 could not be asked" in text
    assert f"not asked: decode decode-0: {cause}" in text
    assert "prefill prefill-0 DP epoch 0" in text
