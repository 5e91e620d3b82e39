"""Logs of one process: to a file of the run's folder, as JSON lines or plain text.

Libraries only call `logging.getLogger("splash.…")`; `configure` is called once by each service main.
Fields that belong to an event go through `extra={"fields": {...}}` and appear as JSON keys.
"""

import json
import logging
import sys
import time
from pathlib import Path

_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message and the event's fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry.update(fields)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(process: str, *, run_dir: Path | None, log_format: str, to_stderr: bool) -> Path | None:
    """Send this process's logs to `run_dir/PROCESS.log` and, if asked, to stderr.

    Args:
        process: the process's name, for example `prefill-0`.
        run_dir: the run's folder; None keeps logs off the disk.
        log_format: "json" or "plain".
        to_stderr: also write to stderr (services that run alone).

    Returns:
        The log file, if any.
    """
    formatter = JsonFormatter(process) if log_format == "json" else logging.Formatter(_PLAIN)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    path = None
    handlers: list[logging.Handler] = []
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / f"{process}.log"
        handlers.append(logging.FileHandler(path))
    if to_stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("splash").setLevel(logging.INFO)
    return path


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log file, for error reports; empty when there is none."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 64 * 1024))
        return file.read().decode(errors="replace").splitlines()[-count:]
