"""How much of a switch each ordinary step copies ahead, next to handoffs that want the same link.

The leader decides for all ranks: copies ahead are collectives, so every rank must make the same ones in the
same step, and no rank's own arbiter may hold one of them back. Invariant: handoffs slow a switch down, and
never for ever: copies keep a part of the link, and at least every `PATIENCE`-th step copies something.
"""

from dataclasses import dataclass, replace

from splash_core.cost.precopy import left_of_link

PATIENCE = 8
"""Steps in a row that copy nothing because of handoffs."""
MOST_YIELDED = 256
"""Steps that a switch gives way to handoffs in all; after them it is due as if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """What a leader knows of the links of its ranks before a step."""

    rate_bps: float = 0.0
    """Bytes per second of a rank's link; 0: unknown, or not shared with handoffs."""
    step_s: float = 0.0
    """How long the next step will about take; 0: unknown."""
    pending_bytes: int = 0
    """A rank's share of the handoffs under way, to be sent or received."""

    def shared_with(self, pending_bytes: int, num_ranks: int) -> "LinkView":
        """The same link with handoffs of so many bytes under way on all ranks together."""
        return replace(self, pending_bytes=-(-pending_bytes // num_ranks))


def left_by_handoffs(view: LinkView, *, most: int) -> int:
    """What handoffs leave of a rank's link during the next step, at most `most`; as the policy prices it."""
    return left_of_link(
        rate_bps=view.rate_bps, step_s=view.step_s, pending_bytes=view.pending_bytes, most=most
    )


class PrecopyPace:
    """One switch's turns: how many units (pages, or layers' weights) each of its steps copies."""

    def __init__(self, most_bytes: int, free_bytes: int | None = None) -> None:
        self.free_bytes = most_bytes if free_bytes is None else free_bytes
        """Of the next step."""
        self._most = most_bytes
        self._saved = 0
        self._waited = 0
        self._yielded = 0

    @property
    def yielded(self) -> int:
        """Steps that have given way to handoffs so far."""
        return self._yielded

    def take(self, unit_bytes: int) -> int:
        """Units of the next step; what is left of a step's part is saved for the next one."""
        unit = max(unit_bytes, 1)
        wanted = max(self._most // unit, 1)
        self._saved += self.free_bytes
        units = min(self._saved // unit, wanted)
        if self.free_bytes >= self._most or units == wanted or self._yielded >= MOST_YIELDED:
            self._saved = self._waited = 0
            return wanted
        self._yielded += 1
        if units == 0 and self._waited < PATIENCE - 1:
            self._waited += 1
            return 0
        self._waited = 0
        units = max(units, 1)
        self._saved = max(self._saved - units * unit, 0)
        return units
