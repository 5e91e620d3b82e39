"""Who goes first among equals: whoever would be done first if all shared the link byte by byte.

Sharing byte by byte is fair, but ends everybody late: of n equal writes all end with the last. Sent one after
the other in the order of those ends, none ends later than by sharing, and most end sooner; a short write that
comes while a long one is under way still overtakes it. Pure arithmetic in bytes; no clock. Invariant: no
matter who comes later, a flow's place is kept, so nobody starves.
"""

_EPS = 1e-6


class FairEnds:
    """Imagined sharing among the flows of one level.

    Its time runs in bytes that each of those who share has had.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._ends: dict[int, float] = {}

    def enter(self, flow: int, num_bytes: int, *, after: float = 0.0) -> float:
        """A flow has so many (more) bytes to send; returns when it would be done, in imagined time.

        Args:
            flow: its number; it may be sharing already.
            num_bytes: what is added.
            after: when what it had before would be done.
        """
        self._ends[flow] = max(after, self._time) + num_bytes
        return self._ends[flow]

    def leave(self, flow: int) -> None:
        """A flow gives up. One that has sent everything stays, for sharing it would not be done yet."""
        self._ends.pop(flow, None)

    def clear(self) -> None:
        """Nobody has anything to send."""
        self._ends.clear()

    def served(self, num_bytes: int) -> None:
        """Bytes of the level have gone, of whomever: all who share have had their part of them."""
        left = float(num_bytes)
        while self._ends:
            first = min(self._ends.values())
            until_first = (first - self._time) * len(self._ends)
            if until_first > left:
                self._time += left / len(self._ends)
                return
            self._time, left = max(first, self._time), left - max(until_first, 0.0)
            self._ends = {flow: end for flow, end in self._ends.items() if end > first + _EPS}
