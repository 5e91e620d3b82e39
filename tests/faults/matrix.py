"""Plays the matrix: case by case, and after each the same questions.

Invariant: a case counts as held only if tokens were those of the undisturbed run, every group that lives
holds nothing, and the survivors served a request afterwards.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc.aio

from tests.faults.bed import Bed
from tests.faults.ending import reader_killed, stopped, stopped_first, writer_killed
from tests.faults.leaving import cancel, gone, slow_writer
from tests.faults.messages import messages
from tests.faults.rows import (
    CANCEL,
    DECODE_SWITCHES,
    GONE,
    MESSAGES,
    PREFILL_SWITCHES,
    READER_KILLED,
    SLOW,
    STOPPED,
    STOPPED_FIRST,
    WRITER_KILLED,
    WRITER_SILENT,
    Case,
)
from tests.faults.silence import writer_silent
from tests.faults.switching import decode_switches, prefill_switches

CASE_TIMEOUT_S = 150.0
PLAYS: dict[str, Callable[[Bed, Case], Awaitable[None]]] = {
    CANCEL.name: cancel,
    GONE.name: gone,
    SLOW.name: slow_writer,
    MESSAGES.name: messages,
    STOPPED.name: stopped,
    WRITER_SILENT.name: writer_silent,
    PREFILL_SWITCHES.name: prefill_switches,
    DECODE_SWITCHES.name: decode_switches,
    WRITER_KILLED.name: writer_killed,
    READER_KILLED.name: reader_killed,
    STOPPED_FIRST.name: stopped_first,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a case."""

    case: Case
    seconds: float
    failure: str
    """Empty when it held."""


async def play(bed: Bed, case: Case) -> None:
    """One case and the questions after it; raises what did not hold."""
    async with asyncio.timeout(CASE_TIMEOUT_S):
        for name in tuple(bed.starting):
            await bed.ready(name)
        await PLAYS[case.row.name](bed, case)
        await bed.empty(*(name for name in bed.stubs if name not in bed.starting))
        await bed.serves(f"{case.name} afterwards")
        await bed.empty("prefill-0", "decode-0")
        for relay in bed.relays.values():
            relay.forget()


async def played(bed: Bed, case: Case) -> Played:
    """One case; a failure is told, not raised."""
    began = time.monotonic()
    try:
        await play(bed, case)
        failure = ""
    except (AssertionError, OSError, TimeoutError, grpc.aio.AioRpcError) as error:
        failure = f"{type(error).__name__}: {error}"
    return Played(case=case, seconds=time.monotonic() - began, failure=failure)
