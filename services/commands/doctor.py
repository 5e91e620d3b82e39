"""`splash doctor`: will it start and reach its peers; each check passes, warns or fails, with a remedy."""

import json
import sys
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.doctor.cluster import cluster
from services.doctor.files import policy, profile
from services.doctor.gpus import gpus
from services.doctor.host import mooncake, ports, rails, versions
from services.doctor.settings import DoctorSettings
from services.doctor.verdicts import CheckResult, CheckVerdict
from services.doctor.wires import self_tests
from services.exit_codes import Exit
from services.options import settings_command

app = typer.Typer()
_COLOURS = {CheckVerdict.PASS: "green", CheckVerdict.WARN: "yellow", CheckVerdict.FAIL: "bold red"}


@settings_command(app, "doctor", DoctorSettings)
def doctor(settings: DoctorSettings, as_json: bool) -> int:
    """Check versions, libraries, ports, rails, transport, --policy, --profile, and a cluster with --admin.

    Takes the settings of `splash up`. Exit code 1 if a check fails.

    Example: `splash doctor --transport mooncake --admin http://127.0.0.1:8001`
    """
    findings = list(_all(settings))
    ok = all(finding.verdict is not CheckVerdict.FAIL for finding in findings)
    if as_json:
        report = {"ok": ok, "checks": [finding.to_json() for finding in findings]}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        Console().print(_table(findings))
    return Exit.DONE if ok else Exit.FAILED


def _all(settings: DoctorSettings) -> Iterator[CheckResult]:
    yield from versions()
    yield from mooncake(settings)
    yield from rails(settings)
    if not settings.admin:
        # Of a cluster that runs, the ports are taken: by itself.
        yield from ports(settings)
    yield from policy(settings)
    yield from profile(settings)
    yield from self_tests(settings)
    yield from gpus(settings)
    yield from cluster(settings)


def _table(findings: list[CheckResult]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        text = Text(finding.detail)
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="italic")
        table.add_row(Text(finding.verdict.value, _COLOURS[finding.verdict]), Text(finding.check), text)
    return table
