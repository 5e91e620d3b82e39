"""House rules that no linter checks: size of files and functions, and what may stand where."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
ENVIRONMENT = re.compile(r"\bos\.(environ|getenv)\b")
LAYOUT_NAMES = ("TP", "CP", "DP", "DOP", "DOP_P", "DOP-P")


def python_files(*folders: str) -> list[Path]:
    """Tracked ones, and new ones."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in listed.stdout.splitlines() if line.endswith(".py")]
    return [path for path in paths if path.exists()]


def source_files() -> list[Path]:
    """Python sources of the product, generated stubs left out."""
    return [path for path in python_files("splash_core", "services") if path.parent.name != "pb"]


def relative(path: Path) -> str:
    """A path as a reader of the repository knows it."""
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_two_test_files_have_one_name() -> None:
    """Test folders are no packages, so pytest imports files by their names alone."""
    files = [path for path in python_files("tests") if path.name.startswith("test_")]
    names = Counter(path.name for path in files)
    assert not [relative(path) for path in files if names[path.name] > 1]


def test_files_are_small() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in source_files()}
    assert {path: size for path, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_functions_are_small() -> None:
    too_long = {
        f"{relative(path)}::{function.name}": size
        for path in source_files()
        for function in functions(ast.parse(path.read_text()))
        if (size := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def names_a_layout(node: ast.expr) -> bool:
    """True for `Layout.TP`, `"TP"`, or a collection with one of them."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "Layout" and node.attr in LAYOUT_NAMES
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(names_a_layout(element) for element in node.elts)
    return isinstance(node, ast.Constant) and node.value in LAYOUT_NAMES


def test_only_layout_and_attention_compare_with_a_named_layout() -> None:
    # Whether two layouts are the same may be asked anywhere; which one it is, only where layouts are defined.
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in source_files()
        if path.relative_to(ROOT).parts[:2] not in {("splash_core", "layout"), ("splash_core", "attention")}
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Compare) and any(map(names_a_layout, (node.left, *node.comparators))))
        or (isinstance(node, ast.MatchValue) and names_a_layout(node.value))
    ]
    assert found == []


def test_no_module_state_is_reassigned() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Global)
    ]
    assert found == []


def test_environment_is_read_in_one_file() -> None:
    found = [
        relative(path)
        for path in source_files()
        if relative(path) != "splash_core/environment.py" and ENVIRONMENT.search(path.read_text())
    ]
    assert found == []


def test_every_module_says_why_it_exists() -> None:
    silent = [relative(path) for path in source_files() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_package_files_hold_only_a_docstring() -> None:
    # import-linter does not see what a package file re-exports, so nothing may be re-exported.
    crowded = [
        relative(path)
        for path in source_files()
        if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) != 1
    ]
    assert crowded == []


def test_no_merge_is_left_half_done() -> None:
    markers = subprocess.run(
        ["git", "grep", "-lE", "^(<{7}|>{7}) "], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert markers.returncode in (0, 1), markers.stderr
    assert markers.stdout == ""
