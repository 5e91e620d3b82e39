"""Children end with their parent, and a dead process is recognised without being fooled by its pid."""

import dataclasses
import os
import subprocess
import sys

import psutil

from splash_core.obs.lifeline import ProcessRef

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
