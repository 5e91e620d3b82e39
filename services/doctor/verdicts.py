"""What a check says. Invariant: whatever does not pass carries a remedy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from splash_core.errors import SplashError


class Verdict(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's result."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """For `--json`."""
        return {
            "check": self.check,
            "verdict": self.verdict.value,
            "detail": self.detail,
            "remedy": self.remedy,
        }


Check = Callable[[], Iterator[Finding]]


def passed(check: str, detail: str) -> Finding:
    """A check that holds."""
    return Finding(check=check, verdict=Verdict.PASS, detail=detail)


def warned(check: str, detail: str, remedy: str) -> Finding:
    """Something that works now and may not later."""
    return Finding(check=check, verdict=Verdict.WARN, detail=detail, remedy=remedy)


def failed(check: str, detail: str, remedy: str) -> Finding:
    """Something that serving would trip over."""
    return Finding(check=check, verdict=Verdict.FAIL, detail=detail, remedy=remedy)


def from_error(check: str, error: SplashError) -> Finding:
    """A failure whose message ends with its remedy, as our errors' do."""
    detail, found, remedy = str(error).rpartition("; ")
    return failed(check, detail, remedy) if found else failed(check, str(error), "see the message")
