"""What the demo found, in the shape that `splash demo --json` prints.

Invariant: `ok` is derived: it is true exactly when `problems` is empty.
"""

from dataclasses import dataclass, field
from typing import Any

MIN_TOKENS = 64
"""A stream that a switch is tested under generates at least this many tokens."""
EXPECTED_SWITCHES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """One switch that happened while streams ran through the group."""

    phase: str
    source: str
    target: str
    mode: str
    exposed_ms: float
    num_bytes: int
    at_s: float
    """When it was asked for, seconds after the phase began."""
    took_s: float
    """From asking to the answer, seconds."""
    streams: int
    """Streams that ran through the group before and after the switch."""
    tokens_equal: bool
    """All of them generated what the unswitched run generated."""

    def to_json(self) -> dict[str, Any]:
        """The contract's fields, and those that explain them."""
        return {
            "phase": self.phase,
            "from": self.source,
            "to": self.target,
            "mode": self.mode,
            "exposed_ms": round(self.exposed_ms, 3),
            "bytes": self.num_bytes,
            "tokens_equal": self.tokens_equal,
            "streams": self.streams,
            "at_s": round(self.at_s, 3),
        }


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """Filled as the demo proceeds, so that a failure still reports what was seen."""

    model: str
    setup_s: float
    run_s: float = 0.0
    answer: str = ""
    generated: tuple[int, ...] = ()
    """Tokens of each unswitched stream."""
    switches: list[SwitchReport] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What broke, in words; other problems are derived."""

    @property
    def borrowed_pages(self) -> int:
        """Borrowed slots that have held KV pages."""
        return int(self.audit.get("borrowed_pages_used", 0))

    @property
    def problems(self) -> list[str]:
        """Everything that must hold and does not."""
        found = list(self.failures)
        if "Paris" not in self.answer:
            found.append(f"the answer does not name Paris: {self.answer!r}")
        if not self.generated or min(self.generated) < MIN_TOKENS:
            found.append(f"streams generated {list(self.generated)} tokens, wanted {MIN_TOKENS} or more each")
        for phase in ("prefill", "decode"):
            pairs = {(entry.source, entry.target) for entry in self.switches if entry.phase == phase}
            if len(pairs) != EXPECTED_SWITCHES:
                found.append(f"{phase}: {len(pairs)} of {EXPECTED_SWITCHES} directed switches were made")
        found += [
            f"{entry.phase} {entry.source} → {entry.target}: tokens differ from the unswitched run"
            for entry in self.switches
            if not entry.tokens_equal
        ]
        if self.borrowed_pages == 0:
            found.append("no KV page was ever in a borrowed slot")
        held = self.audit.get("pages_held")
        if held != 0:
            found.append("no audit was taken" if held is None else f"{held} pages are held after the drain")
        return found

    @property
    def ok(self) -> bool:
        """True when all holds."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """One object, the contract of `splash demo --json`."""
        return {
            "ok": self.ok,
            "answer": self.answer,
            "model": self.model,
            "setup_s": round(self.setup_s, 1),
            "run_s": round(self.run_s, 1),
            "borrowed_pages": self.borrowed_pages,
            "generated_tokens": list(self.generated),
            "problems": self.problems,
            "switches": [entry.to_json() for entry in self.switches],
            "audit": self.audit,
        }
