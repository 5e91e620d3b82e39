"""Where a group is held: by hand, else by its policy document, which a set by hand puts aside for a while.

Invariant: a pin by hand goes before everything, and only the pin that a set by hand found is put aside, for
as long as the document goes on to say it: what it says anew, be it in another version or at another hour,
holds at once, though it be the same layout again.
"""

from splash_core.layout.layout import Layout


class Pins:
    """Pins of one group."""

    def __init__(self) -> None:
        self.by_hand: Layout | None = None
        self._aside: Layout | None = None

    def held(self, said: Layout | None) -> Layout | None:
        """The layout that the group is held in while its document says `said`; None: in none."""
        if self.by_hand is not None:
            return self.by_hand
        return None if said is self._aside else said

    def follow(self, said: Layout | None) -> Layout | None:
        """The document says `said` from now on; the layout that the group is held in."""
        if said is not self._aside:
            self._aside = None
        return self.held(said)

    def put_aside(self, said: Layout | None, wanted: Layout) -> None:
        """`wanted` was set by hand while the document says `said`."""
        self._aside = None if said is wanted else said

    def give_back(self) -> None:
        """What was put aside holds again."""
        self._aside = None
