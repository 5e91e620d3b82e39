"""The groups of the matrix: two that are switched and loaded, and one more of each phase to fail.

    prefill-0, decode-0    two ranks each: the survivors
    prefill-1, decode-1    one rank each: killed and started again, and healthy while the others are disturbed

Both decode groups are reached through a relay. Invariant: what a play stops it lets go on, and the bed ends
every process that it has started.
"""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psutil

from services.children import Child
from splash_core.layout.layout import Layout
from splash_core.pb import control_pb2
from tests.faults.relay import Relay
from tests.faults.requests import NUM_PROMPTS, Request, Stubs, Wanted
from tests.support.fake_groups import start_group

WITHIN_S = 60.0
"""Far more than anything takes; no play waits for it to pass."""
AT_ONCE_S = 9.0
"""Less than any timeout of the groups: what is over by then did not wait for one."""
SILENCE_S = 4.0
"""How long decode-1 waits for a sign of a writer."""
RANKS = {"prefill-0": 2, "decode-0": 2, "prefill-1": 1, "decode-1": 1}
FLAGS: dict[str, object] = {
    "engine": "torch",
    "dtype": "fp64",
    "page-size": 4,
    "kv-bytes": 400_000,
    "max-model-len": 120,
    "chunk-tokens": 8,
    "precopy-bytes-per-step": 16384,
    "push-range-bytes": 1,
    "host-ranks": 6,
    "transport-timeout-s": 2,
    "transport-stall-s": 1,
    "layouts": ",".join(Layout),
}
"""A chunk is two pages, a layer leaves at a time, a request needs 17 of some 70 pages of a rank."""


class Bed:
    """All groups of one transport."""

    def __init__(self, model: Path, folder: Path, transport: str) -> None:
        self.transport = transport
        self._model = model
        self._folder = folder
        self._children: dict[str, Child] = {}
        self.stubs: dict[str, Stubs] = {}
        self.relays = {"decode-0": Relay(), "decode-1": Relay()}
        self.expected: dict[tuple[int, int], list[int]] = {}
        self.starting: set[str] = set()
        self.fresh: set[str] = set()
        """Groups whose ranks nobody has written to since they started."""

    async def start(self) -> None:
        """Start all groups."""
        for relay in self.relays.values():
            await relay.open()
        for name in RANKS:
            self.launch(name)
        for name in RANKS:
            await self.ready(name)
        await self._learn()

    async def close(self) -> None:
        """End everything."""
        for child in self._children.values():
            for process in _family(child.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)
            child.kill()
        for stubs in self.stubs.values():
            await stubs.close()
        for relay in self.relays.values():
            await relay.close()

    def launch(self, name: str) -> None:
        """Start a group; it is used once it is `ready`."""
        phase = name.partition("-")[0]
        flags: dict[str, object] = {**FLAGS, "transport": self.transport, "ranks": RANKS[name]}
        if name == "decode-1":
            flags["transport-silence-s"] = SILENCE_S
        if phase == "decode":
            flags["advertise"] = self.relays[name].address
        (self._folder / f"{name}.ready").unlink(missing_ok=True)
        self._children[name] = start_group(phase, self._model, self._folder, name=name, flags=flags)
        self.fresh.add(name)
        self.starting.add(name)

    async def ready(self, name: str) -> Stubs:
        """Wait until a group answers; its stubs, new if it was started again."""
        address = f"unix:{self._folder / name}.grpc"
        if name not in self.starting:
            return self.stubs[name]
        while not (self._folder / f"{name}.ready").exists():
            death = self._children[name].death()
            assert death is None, str(death)
            await asyncio.sleep(0.02)
        self.starting.discard(name)
        known = self.stubs.pop(name, None)
        if known is not None:
            await known.close()
        self.stubs[name] = Stubs(address)
        if name in self.relays:
            await self.relays[name].stand_before(address)
        return self.stubs[name]

    def leader(self, name: str) -> psutil.Process:
        """A group's leader; its children are the ranks."""
        return psutil.Process(json.loads((self._folder / f"{name}.ready").read_text())["pid"])

    async def killed(self, name: str, whom: str) -> None:
        """Kill a group's leader or its last rank; returns when the whole group has gone."""
        family = _family(self._children[name].pid)
        (family[0] if whom == "leader" else family[-1]).kill()
        await self.until(
            lambda: not any(_alive(process) for process in family), f"{name} ends with its {whom}"
        )
        self._children[name].kill()

    @contextlib.asynccontextmanager
    async def stopped(self, name: str, whom: str = "ranks") -> AsyncIterator[None]:
        """Stop a group's ranks, or all of it, until the block is left."""
        async with self.stopped_later(name, whom) as stop:
            await stop()
            yield

    @contextlib.asynccontextmanager
    async def stopped_later(self, name: str, whom: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Stop a group's ranks, or all of it, when the block says so, until it is left."""
        family = _family(self._children[name].pid)
        processes = family if whom == "all" else family[1:]

        async def stop() -> None:
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            await self.until(
                lambda: all(process.status() == psutil.STATUS_STOPPED for process in processes),
                f"{name} stands still",
            )

        try:
            yield stop
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    async def audit(self, name: str, *, pages: bool = False) -> control_pb2.GroupAudit:
        """What a group holds."""
        return await self.stubs[name].control.Audit(control_pb2.AuditRequest(pages=pages))

    async def state(self, name: str) -> control_pb2.GroupState:
        """What a group does."""
        return await self.stubs[name].control.GetState(control_pb2.StateRequest())

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Wait until something is observed; fails with its name if it never is."""
        end = time.monotonic() + WITHIN_S
        while True:
            seen = holds()
            if seen if isinstance(seen, bool) else await seen:
                return
            assert time.monotonic() < end, f"never: {what}"
            await asyncio.sleep(0.002)

    async def empty(self, *names: str, within_s: float = AT_ONCE_S) -> None:
        """Wait until groups hold no page, no lease and no push."""
        end = time.monotonic() + within_s
        for name in names:
            while not _is_empty(audit := await self.audit(name, pages=True)):
                assert time.monotonic() < end, f"still held after {within_s:g} s: {audit}"
                await asyncio.sleep(0.01)

    async def request(
        self, wanted: Wanted, *, prefill: str = "prefill-0", decode: str = "decode-0"
    ) -> Request:
        """A request that is on its way."""
        request = await Request(wanted).reserve(self.stubs[decode])
        request.prefill(self.stubs[prefill])
        self.fresh -= {prefill, decode}
        return request

    async def serves(self, name: str, *, prefill: str = "prefill-0", decode: str = "decode-0") -> None:
        """A request from end to end, with the tokens that it always had."""
        request = await self.request(
            Wanted(name=name, index=len(name) % NUM_PROMPTS), prefill=prefill, decode=decode
        )
        self.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))

    async def _learn(self) -> None:
        """The undisturbed run: over both survivors, and the same over the other pair."""
        for index in range(NUM_PROMPTS):
            wanted = Wanted(name=f"undisturbed {index}", index=index, tokens=48)
            request = await self.request(wanted)
            self.expected[index, wanted.length] = list(await asyncio.wait_for(request.whole(), WITHIN_S))
            other = await self.request(wanted, prefill="prefill-1", decode="decode-1")
            self.check(other, await asyncio.wait_for(other.whole(), WITHIN_S))

    def check(self, request: Request, tokens: list[int]) -> None:
        """Tokens are those of the undisturbed run, or a beginning of them."""
        wanted = request.wanted
        known = self.expected[wanted.index, wanted.length]
        assert tokens == known[: wanted.tokens], f"{wanted.name}: {tokens}, undisturbed {known}"


def _is_empty(audit: control_pb2.GroupAudit) -> bool:
    held = audit.pages_held + len(audit.leases) + len(audit.pushes) + len(audit.pages)
    return held + sum(rank.kv + rank.quarantined for rank in audit.ranks) == 0


def _family(pid: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return [leader, *leader.children()]
    except psutil.NoSuchProcess:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def bed(model: Path, folder: Path, transport: str) -> Iterator[tuple[asyncio.Runner, Bed]]:
    """Started groups, their undisturbed tokens known, and the loop that everything runs on."""
    with asyncio.Runner() as runner:
        made = Bed(model, folder, transport)
        try:
            runner.run(made.start())
            yield runner, made
        finally:
            runner.run(made.close())
