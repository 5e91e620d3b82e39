"""What a check says. Invariant: whatever does not pass carries a remedy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from splash_core.errors import SplashError


class CheckVerdict(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check's result."""

    check: str
    verdict: CheckVerdict
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


Check = Callable[[], Iterator[CheckResult]]


def passed(check: str, detail: str) -> CheckResult:
    """A check that holds."""
    return CheckResult(check=check, verdict=CheckVerdict.PASS, detail=detail)


def warned(check: str, detail: str, remedy: str) -> CheckResult:
    """Something that works now and may not later."""
    return CheckResult(check=check, verdict=CheckVerdict.WARN, detail=detail, remedy=remedy)


def failed(check: str, detail: str, remedy: str) -> CheckResult:
    """Something that serving would trip over."""
    return CheckResult(check=check, verdict=CheckVerdict.FAIL, detail=detail, remedy=remedy)


def from_error(check: str, error: SplashError) -> CheckResult:
    """A failure whose message ends with its remedy, as our errors' do."""
    detail, found, remedy = str(error).rpartition("; ")
    return failed(check, detail, remedy) if found else failed(check, str(error), "see the message")
