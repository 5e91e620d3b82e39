"""Children end with their parent, and a dead process is recognised without being fooled by its pid."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from splash_core.obs.lifeline import ProcessRef, host_identity

_PARENT = """
import subprocess, sys, os
command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
sys.stdin.read()
"""
_CHILD = """
import os, sys, time
from splash_core.obs.lifeline import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_child_is_killed_when_its_parent_is() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from splash_core.obs.lifeline import die_with_parent; die_with_parent(1 << 22)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is gone" in done.stderr


def test_gone_needs_proof() -> None:
    process = subprocess.Popen(["sleep", "60"])
    ref = ProcessRef.of(process.pid)
    assert not ref.is_gone()
    assert dataclasses.replace(ref, start_ticks=ref.start_ticks - 1).is_gone()  # the pid is another's now
    process.kill()
    # A zombie runs no code, even before it is reaped.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ref.is_gone()
    process.wait()
    assert ref.is_gone()
    assert not dataclasses.replace(ref, host="another/boot").is_gone()


def test_a_process_of_another_pid_namespace_is_never_proven_gone() -> None:
    spaces = [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "pid", "time")]
    assert host_identity().split("/")[1:] == [str(inode) for inode in spaces]
    process = subprocess.Popen(["true"])
    ref = ProcessRef.of(process.pid)
    process.wait()
    assert ref.is_gone()
    boot, net, pid, time = ref.host.split("/")
    assert not dataclasses.replace(ref, host="/".join((boot, net, str(int(pid) + 1), time))).is_gone()


# The main thread ends by itself (the raw system call of one thread), the other one lives on.
_HEADLESS = """
import ctypes, os, sys, threading
def live_on():
    sys.stdin.buffer.raw.read(1)
    os._exit(0)
threading.Thread(target=live_on, daemon=True).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_whose_main_thread_has_ended_lives_while_another_runs() -> None:
    process = subprocess.Popen([sys.executable, "-c", _HEADLESS], stdin=subprocess.PIPE)
    assert process.stdin is not None
    ref, seen = ProcessRef.of(process.pid), psutil.Process(process.pid)
    try:
        while seen.status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()
        assert not ref.is_gone()
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ref.is_gone()
    finally:
        process.kill()
        process.wait()


def test_a_process_that_proc_hides_is_not_proven_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ProcessRef.of(os.getpid())
    monkeypatch.setattr("splash_core.obs.lifeline._stat", lambda pid: None)
    assert not ref.is_gone()
