"""Rows as they are measured: written to the document at once, with progress and an eye on the time.

Invariant: a kill at any moment leaves a complete document of all rows measured so far; all ranks agree on
which cells are measured, since rank 0's clock decides.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from services.bench.document import BenchDocument, fresh_path, measured_here
from services.bench.settings import ALONE, BenchSettings, as_json
from services.bench.shapes import describe, measured_spec
from services.bench.spmd import RankHost

_RESERVE = 1.2
"""A cell is begun only if the longest one so far, and a fifth, still fits into the budget."""

Row = Mapping[str, Any]


class RowRecorder:
    """Collects the rows of one benchmark.

    Args:
        bench: its name.
        host: the rank; only rank 0 writes and speaks.
        settings: resolved.
    """

    def __init__(self, bench: str, host: RankHost, settings: BenchSettings) -> None:
        self._bench = bench
        self._host = host
        self._budget_s = settings.budget_s
        self._rows: dict[object, Row] = {}
        self._not_reached: list[str] = []
        self._longest_s = 0.0
        self._cell_began: float | None = None
        spec = measured_spec(settings.model, layers=settings.layers, experts=settings.experts)
        self._document = measured_here(
            bench,
            settings={**as_json(settings), **describe(spec), **_software(settings)},
            rows=(),
            commit=settings.commit,
            accelerators=_accelerators(settings),
        )
        self._path = (
            fresh_path(Path(settings.out), self._document, settings.label)
            if settings.out and host.leads
            else None
        )

    @property
    def path(self) -> Path | None:
        """Where the document is written, on the rank that leads."""
        return self._path

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        if self._host.leads:
            sys.stderr.write(f"bench {self._bench} [{time.monotonic() - self._host.started:7.1f} s] {text}\n")
            sys.stderr.flush()

    def begin(self, cell: str, *, seconds: float = 0.0) -> bool:
        """True if there is time for another cell; otherwise it is noted as not reached.

        Args:
            cell: in words.
            seconds: that it will take, where that is known; otherwise as long as the longest one so far.
        """
        began = self.goes_on(cell, seconds=seconds)
        if not began:
            self._not_reached.append(cell)
            self._flush()
        return began

    def goes_on(self, cell: str, *, seconds: float = 0.0) -> bool:
        """As `begin`, for one more repetition of a cell that has figures: nothing is noted."""
        now = time.monotonic()
        if self._cell_began is not None:
            self._longest_s = max(self._longest_s, now - self._cell_began)
            self._cell_began = None
        if not self.fits(_RESERVE * (seconds or self._longest_s)):
            self.say(f"no time left for {cell}")
            return False
        self._cell_began = now
        self.say(cell)
        return True

    def fits(self, seconds: float) -> bool:
        """Whether so many seconds are left; asked by all ranks, and rank 0's clock decides for all."""
        if not self._budget_s:
            return True
        left = self._budget_s - (time.monotonic() - self._host.started)
        return self._host.agree(float(left >= seconds)) > 0

    def add(self, row: Row) -> None:
        """Keep a row, and write it."""
        self.put(len(self._rows), row)

    def put(self, key: object, row: Row) -> None:
        """Keep a row in place of the one with the same key, if there is one, and write it."""
        self._rows[key] = {name: _rounded(value) for name, value in row.items()}
        self._flush()

    def document(self) -> BenchDocument:
        """All rows so far."""
        return replace(self._document, rows=tuple(self._rows.values()), not_reached=tuple(self._not_reached))

    def _flush(self) -> None:
        if self._path is not None:
            self.document().write_to(self._path)


def _rounded(value: Any) -> Any:
    """Four digits after the point are more than any clock knows; smaller figures keep four that count."""
    if not isinstance(value, float):
        return value
    return round(value, 4) if abs(value) >= 1.0 else float(f"{value:.4g}")


def _software(settings: BenchSettings) -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    if settings.device == "cuda":
        from torch.cuda import nccl  # not there in builds for CPU

        versions |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl.version()))}
    return versions


def _accelerators(settings: BenchSettings) -> str:
    if settings.device != "cuda":
        return ""
    name = torch.cuda.get_device_name(0)
    return (
        f"1 × {name}, one rank of {settings.ranks}"
        if settings.backend == ALONE
        else f"{settings.ranks} × {name}"
    )
