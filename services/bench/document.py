"""What every benchmark writes: its rows, and where and with what they were measured."""

import datetime
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDocument:
    """One benchmark's result."""

    bench: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    machine: str
    commit: str
    date: str

    def to_json(self) -> dict[str, Any]:
        """The contract's shape."""
        return {
            "bench": self.bench,
            "machine": self.machine,
            "commit": self.commit,
            "date": self.date,
            "settings": dict(self.settings),
            "rows": [dict(row) for row in self.rows],
        }

    def write(self, folder: Path) -> Path:
        """Write `BENCH-DATE-COMMIT.json` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.bench}-{self.date[:10]}-{self.commit}.json"
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        return path


def measured_here(
    bench: str, *, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> BenchDocument:
    """A document about this machine, this commit and this moment."""
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    return BenchDocument(
        bench=bench, settings=settings, rows=rows, machine=_machine(), commit=_commit(), date=now
    )


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
