"""What a writer says it has written of a lease."""

from dataclasses import dataclass

from splash_core.layout.slots import ArenaMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How much a writer has written."""

    pages: int
    layers: int
    """Of each page."""
    num_bytes: int
    """Of all pages."""

    @classmethod
    def whole(cls, pages: int, arena: ArenaMap) -> "Written":
        """So many whole pages."""
        return cls(pages=pages, layers=arena.num_layers, num_bytes=pages * arena.slot_bytes)
