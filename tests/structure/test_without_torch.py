"""What plans and steers starts without torch: a leader, `splash up`, and a rank that has no weights."""

import subprocess
import sys

import pytest

_BLOCKED = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; import {module}"


@pytest.mark.parametrize(
    "module",
    [
        "services.cli",
        "services.commands.up",
        "services.commands.prefill",
        "services.commands.decode",
        "services.commands.layout",
        "services.commands.audit",
        "services.launch",
        "splash_core.engine.rank_process",
    ],
)
def test_imports_without_torch(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED.format(module=module)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
