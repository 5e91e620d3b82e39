"""Container limits count: cores and memory are what the cgroup leaves, not what the host has."""

import os
from pathlib import Path

import psutil
import pytest

from splash_core.leader.host import free_memory, threads_per_rank, usable_cores

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
    (tmp_path / "memory.current").write_text("9000\n")
    assert free_memory(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 9000
