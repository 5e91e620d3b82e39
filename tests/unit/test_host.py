"""Container limits count: cores and memory are what the cgroup leaves, not what the host has."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from splash_core.leader.host import free_memory, memory_limit, reachable_host, threads_per_rank, usable_cores

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", CORES), ("100000 100000", 1), ("50000 100000", 1), ("", CORES)]
)
def test_cores(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path) == cores
    assert threads_per_rank(1, tmp_path) == cores
    assert threads_per_rank(100, tmp_path) == 1


def test_memory(tmp_path: Path) -> None:
    assert free_memory(tmp_path) <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert free_memory(tmp_path) == 3000
    assert memory_limit(tmp_path) == 5000
    (tmp_path / "memory.current").write_text("9000\n")
    assert free_memory(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 9000
    assert memory_limit(tmp_path) == psutil.virtual_memory().total


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "[::]"])
@pytest.mark.parametrize(
    ("fqdn", "name", "known", "told"),
    [
        ("node.cluster", "node", ("node.cluster", "node"), "node.cluster"),
        ("node.nowhere", "node", ("node",), "node"),
        ("localhost.localdomain", "node", ("localhost.localdomain", "node"), "node"),
        ("node", "node", (), "127.0.0.1"),
    ],
)
def test_any_address_is_told_as_a_name_that_others_can_use(
    monkeypatch: pytest.MonkeyPatch, listening: str, fqdn: str, name: str, known: tuple[str, ...], told: str
) -> None:
    def look_up(host: str, port: object) -> list[object]:
        if host not in known:
            raise socket.gaierror(f"{host} is not known")
        return []

    monkeypatch.setattr(socket, "getfqdn", lambda: fqdn)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert reachable_host(listening) == told


@pytest.mark.parametrize("listening", ["127.0.0.1", "10.1.2.3", "worker-3"])
def test_a_certain_address_is_told_as_it_is(listening: str) -> None:
    assert reachable_host(listening) == listening
