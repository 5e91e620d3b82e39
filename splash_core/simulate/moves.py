"""What moves of state make a group's steps longer, and the switches that they belong to.

Invariant: a switch is entered in the ledger with the step that makes it, however long it was copied ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from splash_core.layout.layout import Layout
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import Ledger, Switched
from splash_core.simulate.machine import StepRun
from splash_core.simulate.pricing import Pricing
from splash_core.switch.manifest import SwitchMode


class Longer(NamedTuple):
    """By what moves make a step longer."""

    step_s: float = 0.0
    sent_s: float = 0.0
    """Pushes out of the group wait so long, as the switch goes first on the link."""


@dataclass(slots=True)
class _Asked:
    """A switch that is on its way."""

    layout_from: Layout
    owner_tokens: Sequence[int]
    mode: SwitchMode
    free: bool
    ahead_steps: int = 0
    ahead_s: float = 0.0


class Moves:
    """Of one group."""

    def __init__(self, group: str, *, fleet: Fleet, pricing: Pricing, ledger: Ledger) -> None:
        self._group = group
        self._pricing = pricing
        self._ledger = ledger
        self._link_bps = fleet.model.profile.link_bps
        self._page_size = next(iter(fleet.capacities.values())).page_size
        self._asked: _Asked | None = None

    @property
    def copy_ahead(self) -> bool:
        """True while steps may copy ahead for a switch."""
        return self._asked is not None and self._asked.mode is SwitchMode.PRECOPIED

    def ask(self, layout_from: Layout, mode: SwitchMode, *, owner_tokens: Sequence[int], free: bool) -> None:
        """A switch is on its way.

        Args:
            layout_from: the present layout.
            mode: how it is to be made.
            owner_tokens: cached tokens of the requests that each rank owns, `[T]`.
            free: it shall take no time.
        """
        self._asked = _Asked(layout_from, owner_tokens, mode, free)

    def longer(self, batch: StepRun, layout: Layout, *, now: float, step_s: float) -> Longer:
        """By what a step's moves make it longer.

        Args:
            batch: the step.
            layout: that it runs in.
            now: when it begins.
            step_s: its time without them.
        """
        asked = self._asked
        if asked is not None and layout is not asked.layout_from:
            self._asked = None
            return self._switch(asked, batch, layout, now, step_s)
        longer_s = 0.0
        if batch.relocated_pages:
            longer_s = self._pricing.relocation_s(batch, layout, self._page_size, step_s=step_s)
        if batch.ahead_bytes is not None and asked is not None:
            slower_s = self._pricing.ahead_s(batch.ahead_bytes, step_s=step_s) if batch.ahead_bytes else 0.0
            asked.ahead_steps += 1
            asked.ahead_s += slower_s
            longer_s += slower_s
        return Longer(longer_s)

    def _switch(self, asked: _Asked, batch: StepRun, layout: Layout, now: float, step_s: float) -> Longer:
        mode, exposed_s, longer = SwitchMode.OVERLAPPED, 0.0, Longer()
        if not asked.free:
            mode = mode if batch.rest is None else batch.rest.mode
            cost = self._pricing.switch(
                asked.layout_from, layout, batch, owner_tokens=asked.owner_tokens, step_s=step_s
            )
            exposed_s, longer = cost.exposed_s, Longer(cost.total_s, cost.bytes_per_rank / self._link_bps)
        self._ledger.switches.append(
            Switched(
                time_s=now,
                group=self._group,
                layout_from=asked.layout_from,
                layout_to=layout,
                exposed_s=exposed_s,
                mode=mode,
                ahead_steps=asked.ahead_steps,
                ahead_s=asked.ahead_s,
            )
        )
        return longer
