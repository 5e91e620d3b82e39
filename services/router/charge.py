"""What this router has sent to groups, sequence by sequence, while they do not tell of it themselves.

Invariant: a sequence waits in its decode group until it has a lease, then in its prefill group at most until
its first token is here.
"""

from dataclasses import dataclass

from services.router.records import GroupRecord
from splash_core.dispatch.admission import Demand


@dataclass(slots=True, kw_only=True, eq=False)
class Charge:
    """One sequence on its way: counted against its groups until they report it themselves."""

    prefill: str
    decode: str | None
    demand: Demand
    leased_at_s: float | None = None
    drawn_at_s: float | None = None
    """When its first token was here; until then its prompt is pending."""

    def may_wait(self, record: GroupRecord) -> bool:
        """Whether one of its groups may have counted it as waiting when it last told its state."""
        if record.address == self.decode:
            end_s = self.leased_at_s
        elif self.leased_at_s is not None and self.leased_at_s <= record.answered_at_s:
            end_s = self.drawn_at_s
        else:
            return False
        return end_s is None or end_s >= record.asked_at_s
