"""The router runs without torch and transformers: its image has neither, and it starts in a second."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ABSENT = ("torch", "transformers", "safetensors", "accelerate", "gguf", "zmq")


def test_router_imports_without_model_libraries() -> None:
    folder = ROOT / "services" / "router"
    modules = [
        f"services.router.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"
    ]
    assert "services.router.main" in modules
    code = (
        f"import sys, importlib\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        f"for name in {[*modules, 'services.commands.router']!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
