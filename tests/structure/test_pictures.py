"""Pictures of the code base in its pages show the code base as it is."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_import_picture_is_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = {contract["id"]: contract for contract in project["tool"]["importlinter"]["contracts"]}
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (picture,) = re.findall(r"^splash_core:(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert [line.strip() for line in picture.splitlines()] == contracts["core-layers"]["layers"]


def test_the_scheduling_page_names_every_module() -> None:
    folder = ROOT / "splash_core" / "scheduling"
    named = set(re.findall(r"`(\w+\.py)`", (folder / "README.md").read_text()))
    assert named == {path.name for path in folder.glob("*.py")} - {"__init__.py"}
