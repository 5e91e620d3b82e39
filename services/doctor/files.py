"""Checks of the files that `--policy` and `--profile` name: valid, of whom, how old, and of which model.

Invariant: nothing is looked at that the settings do not name, and nothing needs a cluster.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path

from services.doctor.settings import DoctorSettings
from services.doctor.verdicts import CheckResult, failed, from_error, passed, warned
from services.launch import DECODE, PREFILL
from splash_core.config import UpSettings
from splash_core.cost.measured_on import doubt
from splash_core.cost.profile import HardwareProfile
from splash_core.errors import SplashError
from splash_core.layout.catalog import named_layouts
from splash_core.leader.build import resolve_model
from splash_core.leader.profile_file import read_profile
from splash_core.leader.room import element_type
from splash_core.policy.config import load_document
from splash_core.policy.document import PolicyDocument
from splash_core.policy.in_force import not_offered, why_not
from splash_core.policy.snapshot import Phase
from splash_core.spec.model import ModelSpec

_POLICY, _PROFILE = "--policy", "--profile"
_GROUPS = {PREFILL: Phase.PREFILL, DECODE: Phase.DECODE}
"""As `splash up` calls them."""
_OLD_DAYS = 90
"""Drivers, libraries and machines change; a profile does not."""


def policy(settings: DoctorSettings) -> Iterator[CheckResult]:
    """Is the policy file valid, and can the groups that it speaks of follow it."""
    if settings.policy in ("off", "auto"):
        return
    try:
        document = load_document(settings.policy)
        offered = named_layouts(settings.layouts)
    except SplashError as error:
        yield from_error(_POLICY, error)
        return
    refused = False
    for group, phase in _GROUPS.items():
        if reason := why_not(document, phase=phase, group=group, offered=offered):
            refused = True
            yield failed(_POLICY, reason, "name other layouts, or offer these with --layouts")
        elif odd := not_offered(document, phase=phase, group=group, offered=offered):
            named = ", ".join(odd)
            yield warned(_POLICY, f"allowed: {named} without effect for {group}", f"add {named} to --layouts")
    yield from _strangers(settings, document)
    if not refused:
        yield passed(_POLICY, f"{settings.policy} is valid ({document.digest}), for {_speaks_of(document)}")


def _strangers(settings: DoctorSettings, document: PolicyDocument) -> Iterator[CheckResult]:
    """Groups that `splash up` does not start; of a cluster the router tells."""
    if settings.admin:
        return
    for where, name in document.named_groups.items():
        if name not in _GROUPS:
            known = ", ".join(_GROUPS)
            yield warned(_POLICY, f"{where}: `splash up` starts no {name}", f"name one of {known}")


def _speaks_of(document: PolicyDocument) -> str:
    sections = {
        "all groups": document.shared,
        "prefill groups": document.prefill,
        "decode groups": document.decode,
        **document.groups,
    }
    return (
        ", ".join(name for name, section in sections.items() if section.to_plain()) or "nobody: all defaults"
    )


def profile(settings: DoctorSettings, *, today: datetime.date | None = None) -> Iterator[CheckResult]:
    """Is the profile one of these groups, of this model, and not out of date."""
    if not settings.profile:
        return
    try:
        found = read_profile(Path(settings.profile))
        for ranks in {settings.prefill_ranks, settings.decode_ranks}:
            found.check_group(device=settings.device, dtype=element_type(settings), ranks=ranks)
    except SplashError as error:
        yield from_error(_PROFILE, error)
        return
    yield passed(_PROFILE, f"{found.name}: {_origin(found)}")
    yield from _of_this_model(settings, found)
    age = _age_days(found, today or datetime.datetime.now(tz=datetime.UTC).date())
    if age is not None and age > _OLD_DAYS:
        yield warned(_PROFILE, f"{age} days old", "run `splash calibrate` again on this machine")


def _of_this_model(settings: UpSettings, found: HardwareProfile) -> Iterator[CheckResult]:
    if not settings.model:
        return
    try:
        spec = ModelSpec.from_checkpoint(resolve_model(settings.model))
    except SplashError as error:
        yield from_error("--model", error)
        return
    if why := doubt(found, spec):
        yield warned(_PROFILE, why, f"run `splash calibrate --model {settings.model}`")


def _origin(found: HardwareProfile) -> str:
    seen = found.provenance
    named = {"on": seen.model, "at commit": seen.commit, "of": seen.date[:10], "machine": seen.machine}
    return ", ".join([seen.source, *(f"{word} {value}" for word, value in named.items() if value)])


def _age_days(found: HardwareProfile, today: datetime.date) -> int | None:
    """None where the profile does not say when it was measured."""
    try:
        measured = datetime.datetime.fromisoformat(found.provenance.date).date()
    except ValueError:
        return None
    return (today - measured).days
