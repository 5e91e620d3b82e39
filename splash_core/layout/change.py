"""What the page table needs to know of a manifest.

Manifests live one layer above ownership (`switch.manifest`), so the table sees them through these
structural types: `SwitchManifest` and its `Flow`s match them without knowing it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from splash_core.ids import PageId, RankId, SlotId
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
        """`[T]`: slots of each rank that hold nothing afterwards, though they held a page at some time."""
        ...


def changed_slots(
    change: OwnershipChange, users: Sequence[Mapping[SlotId, PageId]]
) -> tuple[dict[SlotId, PageId | None], ...]:
    """`[T]`: what slots hold after a change that held something else before; None: nothing.

    Args:
        change: what is done.
        users: `[T]`: the page in each slot in use, before it.
    """
    after: tuple[dict[SlotId, PageId | None], ...] = tuple({} for _ in users)
    for flow in change.flows:
        pages, of_rank = cast("Iterable[PageId]", flow.pages), after[flow.dst]
        sources = cast("Iterable[SlotId]", flow.src_slots)
        targets = cast("Iterable[SlotId]", flow.dst_slots)
        if flow.src != flow.dst:
            of_rank.update(zip(targets, pages, strict=True))
            continue
        before = users[flow.dst]
        for page, source, target in zip(pages, sources, targets, strict=True):
            of_rank[target] = page
            if of_rank.get(source, before.get(source)) == page:
                of_rank[source] = None
    for of_rank, slots in zip(after, change.released, strict=False):
        of_rank.update(dict.fromkeys(cast("Iterable[SlotId]", slots)))
    return tuple(
        {slot: page for slot, page in of_rank.items() if before.get(slot) != page}
        for before, of_rank in zip(users, after, strict=True)
    )
