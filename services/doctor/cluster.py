"""Checks of a running cluster, through its admin port: groups, KV ABI, every rank's transport, clocks."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from services.admin_client import AdminClient
from services.doctor.settings import DoctorSettings
from services.doctor.verdicts import CheckResult, failed, from_error, passed, warned
from services.doctor.wires import options_of
from splash_core.config import AdminSettings, admin_key
from splash_core.errors import SplashError
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.factory import reach_peer

_CLOCK_S = 2.0
"""The most that clocks may differ; an HTTP date counts whole seconds."""


def cluster(settings: DoctorSettings) -> Iterator[CheckResult]:
    """All checks; none when no admin port is named."""
    if not settings.admin:
        return
    key = admin_key(AdminSettings(admin=settings.admin, admin_key_file=settings.admin_key_file))
    try:
        with AdminClient(settings.admin, key) as client:
            groups = client.get("/admin/cluster")["groups"]
            layouts = client.get("/admin/layouts")["groups"]
    except SplashError as error:
        yield from_error("admin port", error)
        return
    yield passed("admin port", settings.admin)
    yield from _states(groups)
    yield from _abis(layouts)
    yield from _transports(settings, layouts)
    yield from _clock(settings.admin)


def _states(groups: list[dict[str, Any]]) -> Iterator[CheckResult]:
    for group in groups:
        name = f"group {group['group']}"
        if group["state"] == "ready":
            yield passed(name, f"ready, {group['ranks']} ranks, layout {group['layout']}")
        else:
            cause = group.get("cause") or group["state"]
            yield failed(name, str(cause), "see the group's log; `splash up` prints its folder")


def _abis(layouts: list[dict[str, Any]]) -> Iterator[CheckResult]:
    known = [(entry["group"], KvAbi(**entry["abi"])) for entry in layouts if entry.get("abi")]
    if not known:
        yield warned("KV ABI", "no group has been described yet", "ask again when the groups are ready")
        return
    first, ours = known[0]
    for name, abi in known[1:]:
        differences = abi_diff(ours, abi, names=(first, name))
        if differences:
            yield failed("KV ABI", "; ".join(differences), "start both groups with the same settings")
        else:
            yield passed("KV ABI", f"{first} and {name} agree ({abi.transport}, {abi.dtype})")


def _transports(settings: DoctorSettings, layouts: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """Every pair of a rail of this host and a rank of the cluster."""
    options = options_of(settings)
    rails = [name.strip() for name in options.devices.split(",") if name.strip()] or [""]
    for entry in layouts:
        if not entry.get("abi"):
            continue
        abi = KvAbi(**entry["abi"])
        for rank in entry["ranks"]:
            for rail in rails:
                name = f"{rail or 'this host'} → {entry['group']} rank {rank['rank']}"
                try:
                    reach_peer(options, rank["transport"], abi, devices=rail)
                except SplashError as error:
                    yield from_error(name, error)
                else:
                    yield passed(name, f"answers at {rank['transport'].rpartition('/')[0] or 'shm'}")


def _clock(url: str) -> Iterator[CheckResult]:
    before = time.time()
    try:
        stamp = httpx.get(url, timeout=5.0).headers.get("date", "")
        theirs = parsedate_to_datetime(stamp).timestamp()
    except (httpx.HTTPError, ValueError, TypeError):
        yield warned("clock", "the admin port tells no time", "compare `date` on both hosts")
        return
    apart = max(0.0, theirs - time.time(), before - 1.0 - theirs)
    if apart > _CLOCK_S:
        yield warned("clock", f"{apart:.1f} s apart from the router's", "run a time service (chrony, ntpd)")
    else:
        yield passed("clock", "agrees with the router's")
