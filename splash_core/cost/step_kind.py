"""How a step's rows are brought to the device: what its time, and a switch beside it, depend on.

A decode step is replayed from a recording where one covers its rows (docs/decisions, 13), else it is launched
kernel by kernel. Invariant: the engine asks the same of a step's own rows (`engine.graphs`), so what is
priced as replayed is replayed; only where pages are striped is the number of home rows an expectation.
"""

from enum import StrEnum

from splash_core.cost.load import Load
from splash_core.cost.shares import Shares
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import LayoutRule
from splash_core.switch.manifest import SwitchMode


class StepKind(StrEnum):
    """What a step computes, and how."""

    PROMPTS = "prompts"
    """Some request has several rows, or a row that draws nothing: launched."""
    LAUNCHED = "launched"
    """One row of each request, launched."""
    REPLAYED = "replayed"
    """One row of each request, replayed: what a switch has to move is in place before the rows."""

    @property
    def decodes(self) -> bool:
        """True when all rows are decode rows, which are absorbed and pass queries."""
        return self is not StepKind.PROMPTS

    @property
    def mode(self) -> SwitchMode:
        """How state that was not copied ahead moves with such a step, when nobody asks for another way."""
        return SwitchMode.BLOCKING if self is StepKind.REPLAYED else SwitchMode.OVERLAPPED


def decode_kind(rule: LayoutRule, load: Load, *, recorded_rows: int) -> StepKind:
    """How a step of decode rows runs.

    Args:
        rule: of the layout.
        load: one step's rows.
        recorded_rows: most home rows of a rank in a recorded step; 0: none is recorded.
    """
    if not recorded_rows:
        return StepKind.LAUNCHED
    home = Shares.of(rule, load, storage=CpStorage.PASS_Q).home_rows
    return StepKind.REPLAYED if home <= recorded_rows else StepKind.LAUNCHED
