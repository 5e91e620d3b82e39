"""The policy's part of a router's life: its start, its file, its groups, its canary, its answers.

Invariant: the router's version wins once it has one; without one, groups keep what they were started with.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from services.router.metrics import Metrics
from services.router.policy_canary import CanaryWatch
from services.router.policy_delivery import PolicyDelivery
from services.router.policy_file import PolicyFile
from services.router.policy_keeper import Edit, PolicyKeeper, offered_by
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.layout.layout import Layout
from splash_core.obs.vitals import VitalTasks
from splash_core.policy.config import load_document, policy_at, read_policy_file
from splash_core.policy.document import PolicyDocument, parse_document
from splash_core.policy.in_force import not_offered, pins_not_allowed
from splash_core.policy.keys import KEYS, plain
from splash_core.policy.snapshot import Phase

_LOG = logging.getLogger("splash.router")
_NO_FILE = ("", "off", "auto")
OWN = "own"
"""What is told of a router without a policy: groups keep their own."""


class PolicyService:
    """Everything of the policy in one router."""

    def __init__(
        self,
        option: str,
        registry: Registry,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Reads `option` (`off`, `auto`, a file, or empty for none); raises `ConfigError` if it is wrong."""
        self._registry = registry
        self._wall = wall
        self._met: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.option = option or OWN
        self.keeper = PolicyKeeper(registry, metrics, wall=wall)
        self.canary = CanaryWatch(self.keeper, clock=clock, wall=wall)
        self.delivery = PolicyDelivery(self.keeper, registry, clock=clock, tries=self.canary.tries)
        self.file = self._begin(option)

    def _begin(self, option: str) -> PolicyFile | None:
        """The first version, and the file that it came from."""
        if option in _NO_FILE:
            if option:
                self.keeper.apply(load_document(option), source=f"start --policy {option}")
            return None
        text = read_policy_file(option)
        self.keeper.apply(parse_document(text, source=option), source=f"file {option}")
        return PolicyFile(option, self.keeper, taken=text, on_change=self.delivery.deliver)

    async def start(self, vitals: VitalTasks) -> None:
        """Follow the groups and the file from now on; `vitals` are of the router."""
        self._tasks = [vitals.keep("look after the policy", self._follow())]
        if self.file is not None:
            self._tasks.append(vitals.keep(f"watch of {self.file.path}", self.file.watch()))

    async def stop(self) -> None:
        """Leave everything as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.delivery.stop()

    async def _follow(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # what is wrong with one edit must not stop all that come later
                _LOG.exception("the policy could not be looked after")
            await self._registry.wait_for_change()

    def look(self) -> None:
        """Hear what groups decide by, let the canary see them, hand over what they lack."""
        records = self._registry.records()
        for record in records:
            if record.state is not None:
                policy, first = record.state.policy, record.address not in self._met
                self._met.add(record.address)
                self.keeper.heard_of(policy.version, policy.digest, first=first)
        self.canary.look(records, self.delivery.in_force)
        self.delivery.deliver()

    async def edit(
        self, document: PolicyDocument, *, source: str, expected: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Make a document active and hand it over; what came of it. Raises as `PolicyKeeper.draft` does."""
        change = self.keeper.draft if dry_run else self.keeper.apply
        edit = change(document, source=source, expected=expected)
        if edit.changed and not dry_run:
            self.look()
            await self.delivery.settle()
        return self._edit_json(edit, dry_run=dry_run)

    def _edit_json(self, edit: Edit, *, dry_run: bool) -> dict[str, Any]:
        return edit.version.summary() | {
            "changed": edit.changed,
            "dry_run": dry_run,
            "changes": [change.to_json() for change in edit.changes],
            "warnings": self._warnings(edit.version.document),
            "groups": [self._group(record) for record in self._registry.records()],
        }

    def to_json(self) -> dict[str, Any]:
        """The answer of `GET /admin/policy`."""
        active, rejected = self.keeper.active, self.keeper.rejected
        empty = {
            "version": None,
            "digest": None,
            "source": None,
            "time": None,
            "document": None,
            "text": None,
        }
        return (empty if active is None else active.to_json()) | {
            "policy": self.option,
            "file": None if self.file is None else {"path": self.file.path, "error": self.file.error},
            "rejected": None if rejected is None else rejected.to_json(),
            "warnings": [] if active is None else self._warnings(active.document),
            "groups": [self._group(record) for record in self._registry.records()],
            "canary": self.canary.to_json(),
            "canaries": self.canary.records(),
        }

    def _group(self, record: GroupRecord) -> dict[str, Any]:
        """What one group decides by, and why not by the active version."""
        active = self.keeper.active
        # What one that does not answer decides by is not known, whatever it said before.
        order = None if record.error is not None else self.delivery.in_force(record)
        return {
            "group": record.label,
            "phase": record.phase,
            "version": None if order is None else order.number,
            "digest": None if order is None else order.digest,
            "trying": order is not None and order.trying,
            "pinned": self.delivery.pinned(record),
            "trouble": record.error or self.delivery.trouble(record),
            "effective": None if active is None else self._effective(active.document, record),
            "not_offered": [] if active is None else list(_not_offered(active.document, record)),
        }

    def _effective(self, document: PolicyDocument, record: GroupRecord) -> dict[str, Any]:
        """What the active version says of a group now, defaults included."""
        found = policy_at(
            document,
            phase=Phase(record.phase),
            group=record.label,
            instant_s=self._wall(),
            trying=self.canary.tries(record),
        )
        named = {"enabled": found.enabled, "pin": found.pin}
        return {name: plain(named[name] if name in named else getattr(found.config, name)) for name in KEYS}

    def _warnings(self, document: PolicyDocument) -> list[str]:
        """What is valid and may be a slip: groups that nobody has heard of, layouts that a group has not."""
        records = self._registry.records()
        known = {record.label for record in records}
        strangers = [
            f"{where}: no group is called {name!r} so far; known: {', '.join(sorted(known))}"
            for where, name in document.named_groups.items()
            if name not in known
        ]
        without_effect = [
            f"allowed: {', '.join(layouts)} without effect for {record.label}; its --layouts do not offer it"
            for record in records
            if (layouts := _not_offered(document, record))
        ]
        return strangers + without_effect + pins_not_allowed(document)


def _not_offered(document: PolicyDocument, record: GroupRecord) -> tuple[Layout, ...]:
    """Layouts that a document allows a group and that it does not offer; none while that is not known."""
    offered = offered_by(record)
    if not offered:
        return ()
    return not_offered(document, phase=Phase(record.phase), group=record.label, offered=offered)
