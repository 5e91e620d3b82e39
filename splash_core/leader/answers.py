"""Answers that ranks owe, each awaited by a key.

Invariant: whoever awaits an answer gets it, or the error that ended the group; an answer that nobody awaits
changes nothing.
"""

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Answers(Generic[Key, Value]):
    """All answers of one kind; used on one event loop."""

    def __init__(self) -> None:
        self._waits: dict[Key, asyncio.Future[Value]] = {}

    @property
    def owed(self) -> tuple[Key, ...]:
        """What is still awaited."""
        return tuple(key for key, future in self._waits.items() if not future.done())

    def expect(self, key: Key) -> "asyncio.Future[Value]":
        """A future of the answer; the same one for as long as it is owed."""
        known = self._waits.get(key)
        if known is None or known.done():
            known = self._waits[key] = asyncio.get_running_loop().create_future()
        return known

    def give(self, key: Key, value: Value) -> None:
        """The answer has come."""
        future = self._waits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    def end(self, error: Exception) -> None:
        """No answer will come any more."""
        for future in self._waits.values():
            if not future.done():
                future.set_exception(error)
                # Nobody may be waiting for it any more, which is no news.
                future.exception()
