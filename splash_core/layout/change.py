"""What the page table needs to know of a manifest.

Manifests live one layer above ownership (`switch.manifest`), so the table sees them through these
structural types: `SwitchManifest` and its `Flow`s match them without knowing it.
"""

from collections.abc import Sequence
from typing import Protocol

from splash_core.ids import RankId
from splash_core.layout.columns import Column


class CopyFlow(Protocol):
    """Copies of pages, made on one rank from those on another or from its own."""

    @property
    def src(self) -> RankId:
        """The holder."""
        ...

    @property
    def dst(self) -> RankId:
        """The receiver; equal to `src` when pages only change their slots."""
        ...

    @property
    def pages(self) -> Column:
        """What is copied."""
        ...

    @property
    def src_slots(self) -> Column:
        """Where the holder has each page."""
        ...

    @property
    def dst_slots(self) -> Column:
        """Where the receiver puts each page."""
        ...


class OwnershipChange(Protocol):
    """A finished change of ownership."""

    @property
    def flows(self) -> Sequence[CopyFlow]:
        """All copies in execution order."""
        ...

    @property
    def released(self) -> Sequence[Column]:
        """`[T]`: slots of each rank that hold nothing afterwards though they held a page before or meanwhile."""
        ...
