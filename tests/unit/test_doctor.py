"""`splash doctor`: what it finds, its exit code, and that every failure has a remedy."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli import main
from services.doctor import host
from services.doctor.gpus import gpus, written
from services.doctor.host import mooncake, ports, rails
from services.doctor.settings import DoctorSettings
from services.doctor.verdicts import CheckResult, CheckVerdict, from_error
from services.doctor.wires import self_tests
from splash_core.errors import ConfigError
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.device_memory import DeviceMemory
from splash_core.transport.memory import Memory
from splash_core.transport.memory_server import MemoryServer
from splash_core.transport.mooncake_library import CPU_FLAVOUR, INSTALL
from tests.support.admin_port import Admin
from tests.support.fake_device import FAKE, FakeDriver

ABI = {
    "version": "1",
    "dtype": "fp32",
    "page_size": 4,
    "layers": 2,
    "latent_dim": 32,
    "rope_dim": 8,
    "rope": "",
    "scale": "",
    "model": "m",
    "transport": "shm 3",
    "model_name": "tiny",
}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    server = Admin()
    monkeypatch.setenv("SPLASH_ADMIN", server.url)
    monkeypatch.delenv("SPLASH_ADMIN_KEY", raising=False)
    yield server
    server.close()


def _verdicts(findings: list[CheckResult]) -> dict[str, CheckVerdict]:
    return {finding.check: finding.verdict for finding in findings}


def _doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["splash", "doctor", "--json", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code))


def test_a_healthy_host_passes_over_mooncake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPLASH_ADMIN", raising=False)
    assert _doctor(monkeypatch, "--transport", "mooncake", "--port", "0", "--admin-port", "0") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    checks = {entry["check"]: entry["verdict"] for entry in report["checks"]}
    assert checks.items() >= {"torch": "pass", "mooncake": "pass", "libibverbs.so.1": "pass"}.items()
    assert checks["mooncake self-test"] == "pass"
    assert "shm self-test" not in checks


def test_only_what_the_settings_would_use_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither Mooncake nor its flavour is looked at where pages cross shared memory, on whatever device."""
    monkeypatch.delenv("SPLASH_ADMIN", raising=False)
    assert _doctor(monkeypatch, "--transport", "shm", "--port", "0", "--admin-port", "0") == 0
    checks = {entry["check"]: entry["verdict"] for entry in json.loads(capsys.readouterr().out)["checks"]}
    assert checks == {"torch": "pass", "--port": "pass", "--admin-port": "pass", "shm self-test": "pass"}
    on_gpus = DoctorSettings(device="cuda", transport="shm")
    assert [*mooncake(on_gpus), *rails(on_gpus), *self_tests(on_gpus)] == []
    [refused] = self_tests(DoctorSettings(device="cuda", transport="mooncake"))
    assert refused.verdict is CheckVerdict.FAIL
    assert "reaches host memory only" in refused.detail


def test_taken_ports_fail_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPLASH_ADMIN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert _doctor(monkeypatch, "--port", port, "--admin-port", "0") == 1
    report = json.loads(capsys.readouterr().out)
    (problem,) = [entry for entry in report["checks"] if entry["verdict"] == "fail"]
    assert problem["check"] == "--port"
    assert "choose another --port" in problem["remedy"]


def test_too_narrow_a_range_of_ports_fails() -> None:
    settings = DoctorSettings(port=0, admin_port=0, transport_ports="23471-23473")
    assert _verdicts(list(ports(settings)))["--transport-ports"] is CheckVerdict.FAIL


def test_a_missing_package_fails_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "installed_flavours", dict)
    monkeypatch.setattr(host, "_LIBRARIES", ("libnothere.so.1",))
    findings = list(mooncake(DoctorSettings(transport="mooncake")))
    assert _verdicts(findings) == {"libnothere.so.1": CheckVerdict.FAIL, "mooncake": CheckVerdict.FAIL}
    assert [finding.remedy for finding in findings] == [host.SYSTEM_PACKAGES, INSTALL]


def test_rails_are_looked_at_one_by_one(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        folder = tmp_path / name / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    settings = DoctorSettings(
        transport="mooncake", transport_protocol="rdma", transport_devices="mlx5_0,mlx5_1,mlx5_9"
    )
    verdicts = _verdicts(list(rails(settings, tmp_path)))
    assert [verdicts[f"rail mlx5_{i}"] for i in (0, 1, 9)] == [
        CheckVerdict.PASS,
        CheckVerdict.FAIL,
        CheckVerdict.FAIL,
    ]
    none = _verdicts(
        list(rails(DoctorSettings(transport="mooncake", transport_protocol="rdma"), tmp_path / "x"))
    )
    assert none["rails"] is CheckVerdict.FAIL
    assert list(rails(DoctorSettings(transport="mooncake"), tmp_path)) == []


def test_a_transport_that_cannot_listen_fails_its_self_test() -> None:
    settings = DoctorSettings(transport="mooncake", host="192.0.2.1")
    findings = {finding.check: finding for finding in self_tests(settings)}
    assert findings["mooncake self-test"].verdict is CheckVerdict.FAIL
    assert "choose another --host" in findings["mooncake self-test"].remedy


def _cluster(admin: Admin, *, decode_abi: dict[str, Any], state: str = "ready") -> None:
    groups = [
        {"group": "prefill-0", "state": "ready", "ranks": 1, "layout": "TP", "cause": None},
        {"group": "decode-0", "state": state, "ranks": 1, "layout": "DP", "cause": None},
    ]
    layouts = [
        {"group": "prefill-0", "abi": ABI, "ranks": [{"rank": 0, "transport": "shm:@splash-nobody"}]},
        {"group": "decode-0", "abi": decode_abi, "ranks": []},
    ]
    admin.answers["GET /admin/cluster"] = (200, {"groups": groups})
    admin.answers["GET /admin/layouts"] = (200, {"groups": layouts})
    admin.answers["GET /"] = (200, {})


def test_a_cluster_is_checked_through_its_admin_port(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _cluster(admin, decode_abi={**ABI, "transport": "mooncake tcp 1"}, state="draining")
    assert _doctor(monkeypatch) == 1
    checks = {entry["check"]: entry for entry in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["admin port"]["verdict"] == "pass"
    assert checks["group prefill-0"]["verdict"] == "pass"
    assert checks["group decode-0"]["verdict"] == "fail"
    assert checks["KV ABI"]["detail"] == "transport: prefill-0 'shm 3', decode-0 'mooncake tcp 1'"
    assert checks["this host → prefill-0 rank 0"]["verdict"] == "fail"
    assert checks["clock"]["verdict"] == "pass"
    assert all(entry["remedy"] for entry in checks.values() if entry["verdict"] != "pass")


def test_nobody_at_the_admin_port_is_one_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _doctor(monkeypatch, "--admin", "http://127.0.0.1:9") == 1
    checks = [entry for entry in json.loads(capsys.readouterr().out)["checks"] if entry["verdict"] == "fail"]
    assert [entry["check"] for entry in checks] == ["admin port"]


def test_flavours_for_cuda_are_told_from_the_one_for_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "load_library", lambda: None)
    monkeypatch.setattr(host, "installed_flavours", lambda: {"mooncake-transfer-engine": "1"})
    verdicts = _verdicts(list(mooncake(DoctorSettings(transport="mooncake"))))
    assert verdicts["mooncake flavour"] is CheckVerdict.WARN
    monkeypatch.setattr(host, "installed_flavours", lambda: {CPU_FLAVOUR: "1"})
    assert "mooncake flavour" not in _verdicts(list(mooncake(DoctorSettings(transport="mooncake"))))
    on_gpu = _verdicts(list(mooncake(DoctorSettings(transport="mooncake", device="cuda"))))
    assert on_gpu["mooncake flavour"] is CheckVerdict.FAIL


def test_gpus_that_are_not_there_are_named_with_what_to_do() -> None:
    assert list(gpus(DoctorSettings())) == []
    [finding] = gpus(DoctorSettings(device="cuda", prefill_ranks=1, decode_gpus="998,999"))
    assert finding.verdict is CheckVerdict.FAIL
    assert "998, 999" in finding.detail
    [refused] = gpus(DoctorSettings(device="cuda", prefill_gpus="0,1", decode_gpus="0,1"))
    assert refused.verdict is CheckVerdict.FAIL
    assert "--memory-fraction 0.45" in refused.detail + refused.remedy


def test_what_a_device_hands_over_is_looked_at() -> None:
    source, target = (DeviceMemory(5000, FakeDriver()) for _ in range(2))
    source.bytes_B.fill_(3)
    assert written("GPU 0 to GPU 1", FAKE, source, target).verdict is CheckVerdict.PASS
    broken = FakeDriver()
    broken.failing = "no path"
    bad = written("GPU 0 to GPU 1", FAKE, DeviceMemory(5000, broken), target)
    assert bad.verdict is CheckVerdict.FAIL
    assert "no path" in bad.detail
    assert bad.remedy == "check its links"


def _reaching(admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: Any, served: Memory, abi: Any) -> Any:
    """What the doctor says of a rank whose group has ABI, and that serves some memory."""
    server = MemoryServer(served, KvAbi(**ABI))
    try:
        _cluster(admin, decode_abi=ABI)
        layouts = [{"group": "decode-0", "abi": abi, "ranks": [{"rank": 0, "transport": server.address}]}]
        admin.answers["GET /admin/layouts"] = (200, {"groups": layouts})
        code = _doctor(monkeypatch, "--port", "0", "--admin-port", "0")
    finally:
        server.close()
        served.close()
    checks = {entry["check"]: entry for entry in json.loads(capsys.readouterr().out)["checks"]}
    return code, checks["this host → decode-0 rank 0"]


def test_a_rank_on_this_host_is_asked_for_its_abi_and_its_kind_of_memory(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its first write would be refused for is not told as passed."""
    code, fine = _reaching(admin, monkeypatch, capsys, ArenaMemory(4096), ABI)
    assert (code, fine["verdict"]) == (0, "pass")
    code, other = _reaching(admin, monkeypatch, capsys, ArenaMemory(4096), {**ABI, "layers": 3})
    assert (code, other["verdict"]) == (1, "fail")
    assert "layers: ours 3, theirs 2" in other["detail"] + other["remedy"]
    code, kind = _reaching(admin, monkeypatch, capsys, DeviceMemory(4096, FakeDriver()), ABI)
    assert (code, kind["verdict"]) == (1, "fail")
    assert "the peer's arena is fake memory, ours is host memory" in kind["detail"]


def test_an_error_without_a_remedy_is_not_its_own_remedy() -> None:
    plain = from_error("x", ConfigError("the file is torn"))
    assert (plain.detail, plain.remedy) == ("the file is torn", "see the message")
    ended = from_error("x", ConfigError("it is torn; it has a hole; fetch it again"))
    assert (ended.detail, ended.remedy) == ("it is torn; it has a hole", "fetch it again")
