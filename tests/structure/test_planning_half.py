"""The planning half runs on a machine that has nothing but Python: it decides, it does not act."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "splash_core"
PURE = (
    "ids.py",
    "units.py",
    "errors.py",
    "spec",
    "layout",
    "switch",
    "cost",
    "policy",
    "scheduling",
    "dispatch",
    "simulate",
)
ABSENT = ("torch", "numpy", "transformers", "safetensors", "grpc", "zmq", "google.protobuf", "httpx")
IMPURE = {"time", "random", "secrets", "uuid", "socket", "os", "subprocess", "threading", "asyncio"}


def modules_under(*names: str) -> list[Path]:
    """Source files of packages (or single modules) of splash_core."""
    paths: list[Path] = []
    for name in names:
        path = CORE / name
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return paths


def import_without(modules: list[str], absent: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Import modules in a fresh interpreter in which importing any of `absent` fails."""
    code = f"import sys, importlib\nsys.modules.update(dict.fromkeys({absent!r}))\n"
    code += f"for name in {modules!r}: importlib.import_module(name)\n"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def dotted(path: Path) -> str:
    """The module name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_planning_half_imports_without_torch_or_network() -> None:
    done = import_without([dotted(path) for path in modules_under(*PURE)], ABSENT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", modules_under(*PURE), ids=dotted)
def test_planning_half_has_no_clock_randomness_or_environment(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imported.add(node.module.split(".")[0])
    assert imported & IMPURE == set()
