"""Several asynchronous streams read as one.

Invariant: when the reader stops, for whatever reason, every source has been closed before control returns;
the first failure of a source ends the whole.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_AHEAD = 16
"""Items read ahead of a slow reader."""


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all sources in the order of their arrival; order within a source is kept."""
    queue: asyncio.Queue[_Item[T] | _End] = asyncio.Queue(maxsize=_AHEAD)
    pumps = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if isinstance(item, _Item):
                yield item.value
            elif item.error is not None:
                raise item.error
            else:
                left -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: AsyncGenerator[T, None], queue: "asyncio.Queue[_Item[T] | _End]") -> None:
    error: BaseException | None = None
    try:
        async with aclosing(source):
            async for value in source:
                await queue.put(_Item(value))
    except Exception as failure:
        # Handed to the reader, who raises it.
        error = failure
    await queue.put(_End(error))
