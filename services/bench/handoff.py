"""How fast a handoff moves pages, next to the fastest way to move as many bytes between the same processes.

Invariant: a handoff and its reference read and write the same memory in turns, each first as often as the
other, so that what else the machine does falls on both.
"""

import ctypes
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from services.bench.room import check_bytes
from splash_core.errors import Unavailable
from splash_core.settings_base import Output, Range, output, setting
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, OpState, Peer, TrafficClass, Transport
from splash_core.transport.factory import open_transport
from splash_core.transport.mooncake_library import METADATA, load_library
from splash_core.transport.mooncake_link import PeerLink
from splash_core.transport.mooncake_words import Address
from splash_core.transport.options import SHM, TransportOptions
from splash_core.units import MIB

_ABI = KvAbi(
    version="", dtype="", page_size=0, layers=0, latent_dim=0, rope_dim=0, rope="", scale="", model="bench"
)
_TIMEOUT_S = 300.0
Progress = Callable[[str], None]
Timed = Callable[[], float]
"""Moves all bytes once; the seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffSettings:
    """`splash bench handoff`."""

    transports: str = setting("shm,mooncake", "Which to measure, separated by commas.")
    handoff_bytes: int = setting(1 << 30, "Size of a handoff.", unit="bytes", within=Range(least=1))
    page_bytes: int = setting(
        1 * MIB, "Size of a page; the pages of a handoff lie scattered.", unit="bytes", within=Range(least=1)
    )
    block_bytes: int = setting(
        64 * MIB, "Size of the reference's writes.", unit="bytes", within=Range(least=1)
    )
    pairs: int = setting(10, "Handoffs, each next to a reference.", within=Range(least=1))
    seed: int = setting(0, "Of the pages' places.")
    out: str = output(Output.FOLDER, "Folder for the JSON document, for example docs/results.")


def handoff_rows(settings: HandoffSettings, progress: Progress) -> list[dict[str, Any]]:
    """A row a transport: `{"transport", "reference", "gb_s_p50", "reference_gb_s_p50", "ratio_p50", …}`.

    Args:
        settings: sizes and repetitions.
        progress: told what is measured next.
    """
    check_bytes(
        2 * settings.handoff_bytes,
        f"two arenas of {settings.handoff_bytes} bytes",
        "a smaller --handoff-bytes",
    )
    rows: list[dict[str, Any]] = []
    for name in (part.strip() for part in settings.transports.split(",")):
        options = TransportOptions(name=name)
        with _scene(options, settings) as (handoff, reference):
            rows.append(_row(name, *_pairs(handoff, reference, settings, name, progress), settings))
    return rows


def _row(
    name: str, handoffs: Sequence[float], references: Sequence[float], settings: HandoffSettings
) -> dict[str, Any]:
    """Medians; of the ratios, each of a pair."""
    size = settings.handoff_bytes
    ratios = [before / after for after, before in zip(handoffs, references, strict=True)]
    return {
        "transport": name,
        "reference": "memcpy" if name == SHM else "raw library writes",
        "bytes": size,
        "page_bytes": settings.page_bytes,
        "pairs": len(ratios),
        "gb_s_p50": round(size / statistics.median(handoffs) / 1e9, 3),
        "reference_gb_s_p50": round(size / statistics.median(references) / 1e9, 3),
        "ratio_p50": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def _pairs(
    handoff: Timed, reference: Timed, settings: HandoffSettings, name: str, progress: Progress
) -> tuple[list[float], list[float]]:
    """Seconds of each handoff and of its reference, after one of each that does not count."""
    progress(f"{name}: warming up")
    handoff()
    reference()
    handoffs: list[float] = []
    references: list[float] = []
    for pair in range(settings.pairs):
        progress(f"{name}: pair {pair + 1} of {settings.pairs}")
        order = [(handoff, handoffs), (reference, references)]
        for measure, seconds in order if pair % 2 == 0 else reversed(order):
            seconds.append(measure())
    return handoffs, references


@contextmanager
def _scene(options: TransportOptions, settings: HandoffSettings) -> Iterator[tuple[Timed, Timed]]:
    """A writer here, a reader in a process of its own, and the two ways to move bytes between them."""
    size = settings.handoff_bytes
    source = ArenaMemory(size)
    source.touch()
    with _reader(options, size) as address:
        transport = open_transport(options)
        try:
            transport.register(source, _ABI)
            peer = transport.connect(address, _ABI)
            pages = _scattered(settings)

            def handoff() -> float:
                return _hand_off(transport, peer, pages)

            raw = _memcpy if options.name == SHM else _library_writes
            with raw(source, address, options, settings) as reference:
                yield handoff, reference
        finally:
            transport.close(drain=True)
            source.close()


def _scattered(settings: HandoffSettings) -> list[Descriptor]:
    """All pages, each in a place of its own on either side; the last may be shorter."""
    size, page = settings.handoff_bytes, settings.page_bytes
    whole = size // page
    places = list(range(whole))
    random.Random(settings.seed).shuffle(places)
    pages = [Descriptor(index * page, place * page, page) for index, place in enumerate(places)]
    rest = size - whole * page
    return [*pages, Descriptor(whole * page, whole * page, rest)] if rest else pages


def _hand_off(transport: Transport, peer: Peer, pages: Sequence[Descriptor]) -> float:
    began = time.perf_counter()
    op = transport.write(peer, pages, traffic=TrafficClass.HANDOFF, deadline_s=_TIMEOUT_S, attempt=1)
    status = op.wait(_TIMEOUT_S)
    seconds = time.perf_counter() - began
    if status.state is not OpState.DONE:
        raise Unavailable(f"a handoff of the benchmark failed: {status.error or status.state}; run it again")
    return seconds


@contextmanager
def _memcpy(
    source: ArenaMemory, address: str, options: TransportOptions, settings: HandoffSettings
) -> Iterator[Timed]:
    """Copies within this process, between memory of the same kind."""
    del address, options
    target = ArenaMemory(source.num_bytes)
    target.touch()

    def measure() -> float:
        began = time.perf_counter()
        for start, size in _blocks(settings):
            ctypes.memmove(target.address + start, source.address + start, size)
        return time.perf_counter() - began

    try:
        yield measure
    finally:
        target.close()


@contextmanager
def _library_writes(
    source: ArenaMemory, address: str, options: TransportOptions, settings: HandoffSettings
) -> Iterator[Timed]:
    """The library's own synchronous writes, one after the other, into the same peer memory."""
    link = PeerLink.open(Address.parse(address), _ABI, options)
    engine = load_library().TransferEngine()
    if engine.initialize(options.host, METADATA, options.protocol, options.devices) != 0:
        raise Unavailable("the transfer engine does not start; see `splash doctor --transport mooncake`")
    engine.register_memory(source.address, source.num_bytes)
    welcome = link.welcome

    def measure() -> float:
        began = time.perf_counter()
        for start, size in _blocks(settings):
            code = engine.transfer_sync_write(
                welcome.segment, source.address + start, welcome.base + start, size
            )
            if code != 0:
                raise Unavailable(f"a raw write of the benchmark failed (code {code}); run it again")
        return time.perf_counter() - began

    try:
        yield measure
    finally:
        link.close()


def _blocks(settings: HandoffSettings) -> Iterator[tuple[int, int]]:
    for start in range(0, settings.handoff_bytes, settings.block_bytes):
        yield start, min(settings.block_bytes, settings.handoff_bytes - start)


@contextmanager
def _reader(options: TransportOptions, num_bytes: int) -> Iterator[str]:
    """A process that offers memory; yields its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_offer, args=(theirs, options, num_bytes), daemon=True)
    process.start()
    theirs.close()
    try:
        yield str(ours.recv())
    except EOFError as error:
        raise Unavailable("the reading process ended at once; its output says why") from error
    finally:
        ours.close()
        process.join(10)
        process.kill()
        process.join()


def _offer(pipe: Connection, options: TransportOptions, num_bytes: int) -> None:
    """Offer touched memory until the other end of the pipe is closed."""
    transport, memory = open_transport(options), ArenaMemory(num_bytes)
    memory.touch()
    pipe.send(transport.register(memory, _ABI).address)
    try:
        pipe.recv()
    except EOFError:
        transport.close(drain=False)
        memory.close()
