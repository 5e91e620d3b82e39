"""How a router stops: unready first, then closed to new requests, then the last answers.

Invariant: answers that outlive their time are ended by this router, each with an error, before ports close.
"""

import asyncio
import logging
from collections.abc import Sequence

import uvicorn

from services.router.config import RouterConfig
from services.router.dispatch import Dispatcher
from services.router.running import RunningAnswers
from splash_core.errors import SplashError

_LOG = logging.getLogger("splash.router")
_POLL_S = 0.05
_FAREWELL_S = 1.0
"""How long a client that is told of the end may take to read it."""


class AnswersCut(SplashError):
    """The time to drain was over before all answers had ended."""


async def drain(
    config: RouterConfig,
    dispatcher: Dispatcher,
    answers: RunningAnswers,
    servers: Sequence[uvicorn.Server],
    forced: asyncio.Event,
) -> AnswersCut | None:
    """Turn unready, refuse new requests, let running answers end; those that do not are cut.

    Returns:
        What to tell the operator where answers were cut because their time was over.
    """
    dispatcher.leaving = True
    await first_of(asyncio.sleep(config.drain_hold_s), forced.wait())
    # Who comes now is told so; a closed port would look like a crash while answers still run.
    dispatcher.draining = True
    await first_of(_answered(servers), asyncio.sleep(config.drain_timeout_s), forced.wait())
    if forced.is_set():
        await _cut(answers, servers, "the router stops at once, as it was told; the answer was cut")
        if answers.num_cut:
            _LOG.warning("%s by the second signal", _were_cut(answers))
        return None
    after = f"after {config.drain_timeout_s:g} s"
    await _cut(answers, servers, f"the router stops; the answer was cut {after} (--drain-timeout-s)")
    if not answers.num_cut:
        return None
    told = AnswersCut(f"{_were_cut(answers)} {after}; raise --drain-timeout-s")
    _LOG.error("%s", told)
    return told


async def first_of(*awaitables: "object") -> None:
    """Wait for the first; those left are cancelled unless they are tasks of the caller."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]  # type: ignore[arg-type]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, awaitable in zip(tasks, awaitables, strict=True):
        if task is not awaitable:
            task.cancel()


async def _cut(answers: RunningAnswers, servers: Sequence[uvicorn.Server], cause: str) -> None:
    if not _busy(servers):
        return
    answers.cut(cause)
    await first_of(_answered(servers), asyncio.sleep(_FAREWELL_S))
    if not _busy(servers):
        return
    # Whoever does not read cannot be told; without a connection their handlers end by themselves.
    for server in servers:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
    await first_of(_answered(servers), asyncio.sleep(_FAREWELL_S))


async def _answered(servers: Sequence[uvicorn.Server]) -> None:
    """Return when no request is being answered."""
    while _busy(servers):
        await asyncio.sleep(_POLL_S)


def _busy(servers: Sequence[uvicorn.Server]) -> bool:
    return any(server.server_state.tasks for server in servers)


def _were_cut(answers: RunningAnswers) -> str:
    number = answers.num_cut
    return "1 answer was cut" if number == 1 else f"{number} answers were cut"
