"""The answers that this router is giving: each has its time, and all can be ended at once, with a cause.

Invariant: an answer that is ended early ends with an error that says why, never with a cut connection.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from splash_core.errors import DeadlineExceeded, Unavailable


class RunningAnswers:
    """Knows every answer under way, of gateway and admin port."""

    def __init__(self) -> None:
        self.num_cut = 0
        """Answers that were ended early."""
        self._cause = ""
        self._scopes: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def within(self, limit_s: float | None) -> AsyncGenerator[None, None]:
        """One answer, or what is left of it.

        Raises:
            DeadlineExceeded: it took longer than `limit_s`.
            Unavailable: it was cut.
        """
        # Zero where all were cut just before: a stream's second part must not outlive them.
        scope = asyncio.timeout(0 if self._cause else limit_s)
        self._scopes.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            if self._cause:
                raise self._cut_short() from None
            raise DeadlineExceeded(
                f"the request took longer than {limit_s or 0:.0f} s; ask for less"
            ) from None
        finally:
            self._scopes.discard(scope)

    def cut(self, cause: str) -> None:
        """End all of them, and whatever would begin later."""
        self._cause = cause
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    def _cut_short(self) -> Unavailable:
        self.num_cut += 1
        return Unavailable(self._cause)
