"""What the page table needs to know of a manifest.

Manifests live one layer above ownership (`switch.manifest`), so the table sees them through these
structural types: `SwitchManifest`, `PageMove` and `SlotRef` match them without knowing it.
"""

from collections.abc import Sequence
from typing import Protocol

from splash_core.ids import PageId, RankId, SlotId


class CopyMove(Protocol):
    """One copy of a page, made from another."""

    @property
    def page(self) -> PageId:
        """What is copied."""
        ...

    @property
    def src(self) -> RankId:
        """The holder."""
        ...

    @property
    def src_slot(self) -> SlotId:
        """Where the holder has it."""
        ...

    @property
    def dst(self) -> RankId:
        """The receiver; equal to `src` when the page only changes its slot."""
        ...

    @property
    def dst_slot(self) -> SlotId:
        """Where the receiver puts it."""
        ...


class VacatedSlot(Protocol):
    """A slot that holds nothing once the change is done."""

    @property
    def rank(self) -> RankId:
        """Whose slot."""
        ...

    @property
    def slot(self) -> SlotId:
        """Which slot."""
        ...


class OwnershipChange(Protocol):
    """A finished change of ownership."""

    @property
    def moves(self) -> Sequence[CopyMove]:
        """All copies in execution order."""
        ...

    @property
    def released(self) -> Sequence[VacatedSlot]:
        """Slots that hold nothing afterwards though they held a page before or meanwhile."""
        ...
