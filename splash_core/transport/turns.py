"""One operation's turns at a link, where a turn is several pieces: small ones travel together.

Invariant: what is submitted was allowed, and every turn allowed is over once its bytes have landed.
"""

from collections import deque

from splash_core.transport.link import LinkFlow


class Turns:
    """Used by one thread."""

    def __init__(self, flow: LinkFlow) -> None:
        self.flow = flow
        self._asked = 0
        self._allowed = 0
        self._under_way: deque[int] = deque()
        self._landed = 0

    @property
    def allowed(self) -> int:
        """Bytes that may be submitted now."""
        return self._allowed

    def ask(self, num_bytes: int) -> None:
        """Stand in line for the next pieces, unless some may go already."""
        if not self._allowed:
            self._asked = num_bytes
            self.flow.want(num_bytes)

    def grant(self) -> None:
        """The turn asked for has come."""
        self._allowed += self._asked
        self._under_way.append(self._asked)

    def spend(self, num_bytes: int) -> None:
        """A piece is submitted."""
        self._allowed -= num_bytes

    def landed(self, num_bytes: int) -> None:
        """A piece has landed; turns whose bytes have are over."""
        self._landed += num_bytes
        while self._under_way and self._landed >= self._under_way[0]:
            self._landed -= self._under_way.popleft()
            self.flow.sent()

    def end(self) -> None:
        """Nothing is wanted or under way any more."""
        self.flow.close()
