"""Where fetched models lie, and how a download becomes one: complete or absent, never half.

Invariant: a folder under its final name holds a complete model whose files match the sums written beside
them. It gets that name by one rename, after everything else is done.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from splash_core.errors import ConfigError

DEMO_MODEL = "smollm2-mla"
"""Name of the model that the demo fetches (`smollm2.py` makes it)."""
SUMS = "splash-sums.json"
_BLOCK = 1 << 22


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file with the sum that the code expects.

    Raises:
        ConfigError: it is another file, or a damaged one.
    """
    found = file_sha256(path)
    if found != expected:
        raise ConfigError(f"{path} has SHA-256 {found}, expected {expected}; remove it and fetch again")


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Fetched models under one folder, one folder each."""

    root: Path

    def path(self, name: str) -> Path:
        """Where model `name` lies once it is fetched."""
        return self.root / "models" / name

    def problem(self, name: str) -> str | None:
        """None when the model is complete and undamaged, else what is wrong."""
        folder = self.path(name)
        try:
            sums: dict[str, str] = json.loads((folder / SUMS).read_text())
        except FileNotFoundError:
            return "not fetched" if not folder.exists() else f"{folder / SUMS} is missing"
        except ValueError:
            return f"{folder / SUMS} is damaged"
        for file, expected in sums.items():
            if not (folder / file).is_file():
                return f"{folder / file} is missing"
            if file_sha256(folder / file) != expected:
                return f"{folder / file} is damaged"
        return None

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder on the cache's file system, removed at the end."""
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self.root) as folder:
            yield Path(folder)

    def install(self, name: str, folder: Path) -> Path:
        """Give a finished folder of the workspace its final name, replacing a damaged predecessor."""
        for path in folder.iterdir():
            path.chmod(0o644)  # safetensors writes files that only their owner may read
        sums = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
        (folder / SUMS).write_text(json.dumps(sums, indent=2) + "\n")
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            discarded = Path(tempfile.mkdtemp(prefix="discard-", dir=self.root))
            target.rename(discarded / name)
            os.rename(folder, target)
            shutil.rmtree(discarded)
        else:
            os.rename(folder, target)
        return target

    def resolve(self, model: str) -> Path:
        """The folder that `--model` means: a path with a config.json, or the name of a fetched model.

        Raises:
            ConfigError: it is neither.
        """
        for folder in (Path(model), self.path(model)):
            if (folder / "config.json").is_file():
                return folder
        raise ConfigError(
            f"--model {model}: no folder with a config.json, and no fetched model of that name; "
            f"try `splash model fetch {DEMO_MODEL}`"
        )
