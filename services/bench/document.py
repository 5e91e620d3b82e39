"""What every benchmark writes: its rows, and where and with what they were measured."""

import dataclasses
import datetime
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from services.outputs import replace_text
from splash_core.errors import ConfigError
from splash_core.spec.fields import check_version

DOCUMENT_VERSION = 1
"""Documents that name none are of this version: the first ones did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDocument:
    """One benchmark's result."""

    bench: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    machine: str
    commit: str
    date: str
    version: int = DOCUMENT_VERSION
    not_reached: Sequence[str] = field(default=())
    """Cells that the time did not suffice for."""

    def to_json(self) -> dict[str, Any]:
        """The contract's shape; `not_reached` only where something was left out."""
        fields: dict[str, Any] = {
            "bench": self.bench,
            "version": self.version,
            "machine": self.machine,
            "commit": self.commit,
            "date": self.date,
            "settings": dict(self.settings),
            "rows": [dict(row) for row in self.rows],
        }
        return fields | ({"not_reached": list(self.not_reached)} if self.not_reached else {})

    def write(self, folder: Path) -> Path:
        """Write `BENCH-DATE-COMMIT.json` into a folder; an earlier one of that name stays."""
        path = fresh_path(folder, self)
        self.write_to(path)
        return path

    def write_to(self, path: Path) -> None:
        """Replace a file; a reader, or a kill at any moment, finds the old or the new one."""
        replace_text(path, json.dumps(self.to_json(), indent=2) + "\n")


def measured_here(
    bench: str,
    *,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    commit: str = "",
    accelerators: str = "",
) -> BenchDocument:
    """A document about this machine, this commit and this moment.

    Args:
        bench: its name.
        settings: what the rows depend on.
        rows: measured.
        commit: default: what git says of this folder.
        accelerators: devices beside the CPU, in words.
    """
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    return BenchDocument(
        bench=bench,
        settings=settings,
        rows=rows,
        machine=f"{accelerators}, {_machine()}" if accelerators else _machine(),
        commit=commit or _commit(),
        date=now,
    )


def fresh_path(folder: Path, document: BenchDocument, label: str = "") -> Path:
    """A file for a document that is written more than once; never one of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(part for part in (document.bench, label, document.date[:10], document.commit) if part)
    path, number = folder / f"{name}.json", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.json", number + 1
    return path


def keep_each(
    documents: Iterable[BenchDocument], *, out: str, label: str
) -> tuple[Path | None, dict[str, Any]]:
    """Write a document each time that it has grown, so that a kill leaves what was before.

    Args:
        documents: the same one, ever longer.
        out: folder for it; empty: nowhere.
        label: as of `fresh_path`.

    Returns:
        Where it lies, and what it says at the end.
    """
    path: Path | None = None
    told: dict[str, Any] = {}
    for document in documents:
        if out:
            path = path or fresh_path(Path(out), document, label)
            document.write_to(path)
        told = document.to_json()
    return path, told


def read_earlier(path: Path, *, flag: str, bench: str, command: str) -> dict[str, Any]:
    """The JSON of a document that an earlier run wrote.

    Raises:
        ConfigError: as `read_document`, or it is of another benchmark; names the flag, and the command that
            writes one.
    """
    where = f"{flag} {path}"
    document = read_document(path, where=where, command=command)
    if document["bench"] != bench:
        raise ConfigError(f"{where} is no document of `{command}`")
    fields = dataclasses.fields(BenchDocument)
    lacking = [each.name for each in fields if each.default is MISSING and each.name not in document]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(lacking)}; measure again with `{command}`")
    return document


def read_document(path: Path, *, where: str, command: str) -> dict[str, Any]:
    """The JSON of a benchmark's document.

    Args:
        path: of the file.
        where: its name, for errors.
        command: writes one.

    Raises:
        ConfigError: it cannot be read, is none, or is of another version.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {error}; give a document of `{command}`") from error
    if not isinstance(document, dict) or "bench" not in document:
        raise ConfigError(f"{where} is no document of `{command}`")
    check_version(
        document.get("version", DOCUMENT_VERSION),
        reads=DOCUMENT_VERSION,
        what=f"{where}: the document",
        remedy=f"read it with the version of Splash that wrote it, or measure again with `{command}`",
    )
    return document


def _machine() -> str:
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gib = round(psutil.virtual_memory().total / (1 << 30))
    return f"{psutil.cpu_count()} × {model}, {gib} GiB, {platform.system()} {platform.release()}"


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=8"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
