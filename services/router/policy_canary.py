"""The canary of the active policy: shown what the groups do, it says who tries, and ends as a new version.

Invariant: every canary leaves one record, and the version that follows from it.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from services.router.policy_delivery import PolicyOrder
from services.router.policy_keeper import PolicyKeeper
from services.router.records import GroupRecord
from splash_core.errors import InvalidRequest
from splash_core.policy.canary import CanaryState, Moment, Seen, Stage, advance, superseded
from splash_core.policy.canary_record import CanaryRecord, CanaryVerdict
from splash_core.policy.snapshot import Phase
from splash_core.policy.trial import Trial
from splash_core.policy.versions import PolicyVersion
from splash_core.rpc.policy import totals_from_pb

_LOG = logging.getLogger("splash.router")
_KEPT = 64

InForce = Callable[[GroupRecord], PolicyOrder | None]


class CanaryWatch:
    """Drives the canary of whichever version is active."""

    def __init__(
        self, keeper: PolicyKeeper, *, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._wall = wall
        self._of: PolicyVersion | None = None
        """The version whose canary runs."""
        self._state = CanaryState()
        self._records: deque[CanaryRecord] = deque(maxlen=_KEPT)

    @property
    def trial(self) -> Trial | None:
        """What is being tried, or will be."""
        return None if self._of is None else self._of.document.trial

    def tries(self, record: GroupRecord) -> bool:
        """Whether a group shall run with what is tried."""
        active, trial = self._keeper.active, self.trial
        if active is None or trial is None or self._of is None or active.digest != self._of.digest:
            return False
        return self._state.trying and record.label == trial.group

    def look(self, records: list[GroupRecord], in_force: InForce) -> bool:
        """See how the groups do; True when a new version has come of it."""
        active = self._keeper.active
        if self._of is not None and (active is None or active.digest != self._of.digest):
            self._supersede(active)
        if self._of is None and active is not None and active.document.trial is not None:
            self._of, self._state = active, CanaryState()
        trial = self.trial
        if trial is None or active is None:
            return False
        seen = {
            record.label: found
            for record in records
            if (found := _seen(record, in_force(record), active)) is not None
        }
        outcome = advance(self._state, trial, Moment(time_s=self._clock(), groups=seen))
        if isinstance(outcome, CanaryState):
            self._state = outcome
            return False
        self._conclude(replace(outcome, time_s=self._wall()))
        return True

    def records(self, phase: str | None = None) -> list[dict[str, Any]]:
        """How canaries ended, oldest first, in the shape of decisions."""
        found = [record.to_json() for record in self._records]
        return [record for record in found if phase in (None, record["phase"])]

    def to_json(self) -> dict[str, Any] | None:
        """The canary that runs, if one does."""
        trial = self.trial
        if trial is None:
            return None
        since = None if self._state.stage is Stage.WAITING else self._clock() - self._state.since_s
        return trial.to_plain() | {"stage": self._state.stage.value, "stage_age_s": since}

    def _conclude(self, record: CanaryRecord) -> None:
        """Promote or roll back, as a new version."""
        assert self._of is not None, "a canary that ends is of a version"
        document, group = self._of.document, record.trial.group
        if record.verdict is CanaryVerdict.PROMOTE and record.phase is not None:
            try:
                self._keeper.apply(
                    document.with_promoted(record.phase), source=f"canary of {group}: promoted"
                )
                if hours := document.tried_in_hours(record.phase):
                    reason = f"{record.reason}; in their hours calendars set {', '.join(hours)} as before"
                    record = replace(record, reason=reason)
            except InvalidRequest as error:
                reason = f"{record.reason}; not promoted: {error}"
                record = replace(record, verdict=CanaryVerdict.ROLL_BACK, reason=reason)
        if record.verdict is not CanaryVerdict.PROMOTE:
            # Whatever groups have come meanwhile: a canary ends.
            self._keeper.withdraw(document.without_trial(), source=f"canary of {group}: rolled back")
        self._end(record)

    def _supersede(self, active: PolicyVersion | None) -> None:
        assert self._of is not None, "only what runs is superseded"
        trial = self._of.document.trial
        assert trial is not None, "a canary runs for a trial"
        by = "nothing" if active is None else f"version {active.number} ({active.source})"
        self._end(superseded(self._state, trial, time_s=self._wall(), by=by))

    def _end(self, record: CanaryRecord) -> None:
        self._records.append(record)
        self._of, self._state = None, CanaryState()
        fields = {"group": record.trial.group, "verdict": record.verdict.value, "reason": record.reason}
        _LOG.info("canary ended", extra={"fields": fields})


def _seen(record: GroupRecord, order: PolicyOrder | None, active: PolicyVersion) -> Seen | None:
    """A group as a canary sees it; None while it cannot be asked or follows another version."""
    state = record.state
    if record.error is not None or record.refused is not None or state is None:
        return None
    if order is None or state.phase != record.phase:
        return None
    return Seen(
        phase=Phase(record.phase),
        incarnation=state.incarnation,
        trying=order.trying and order.digest == active.digest,
        totals=totals_from_pb(state.totals),
    )
