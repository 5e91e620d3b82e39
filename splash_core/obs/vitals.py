"""Background work that its owner cannot do without: when it dies, the owner hears of it by name, and ends.

A rank without its copy worker, a leader without its sweep or a router that asks nobody any more would go on
half deaf, and only deadlines of others would tell. So whatever serves longer than the call that began it is
begun here. Two kinds: what is *kept* ends only after `release`; an *errand* ends by itself. Invariant: work
that ends with an exception, or is kept and ends unasked, is the owner's `death`; the first one stays.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from splash_core.errors import InvariantBroken

_log = logging.getLogger("splash.vitals")


class Died(InvariantBroken):
    """Background work has ended though its owner goes on; says which, and with what."""


def _nobody(death: Died) -> None:
    """Owners that look by themselves need not be told."""


class Vitals:
    """All such work of one owner."""

    def __init__(self, on_death: Callable[[Died], None] = _nobody) -> None:
        """Nothing runs yet; `on_death` is called once, where the work ran."""
        self._on_death = on_death
        self._lock = threading.Lock()
        self._released: set[object] = set()
        self.death: Died | None = None
        """Why the owner has to end, if it has to."""

    def check(self) -> None:
        """Return while everything lives.

        Raises:
            Died: something does not.
        """
        if self.death is not None:
            raise self.death

    def release(self, work: object) -> None:
        """What is kept may end from now on: its owner is about to ask it to."""
        with self._lock:
            self._released.add(work)

    def _ended(self, name: str, work: object, error: BaseException | None) -> None:
        """Kept work, or an errand with an error, has come to its end."""
        with self._lock:
            asked = work in self._released
            self._released.discard(work)
        if error is None and asked:
            return
        cause = "it returned unasked" if error is None else f"{type(error).__name__}: {error}"
        death = Died(f"its {name} has ended, which it cannot do without: {cause}")
        death.__cause__ = error
        with self._lock:
            if self.death is not None:
                return
            self.death = death
        _log.error("%s", death, exc_info=error)
        try:
            self._on_death(death)
        except Exception:  # whoever looks at `death` hears of it all the same
            _log.exception("nobody could be told that the %s has ended", name)


class VitalThreads(Vitals):
    """Of an owner that works in threads."""

    def keep(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread that goes on until it is released and asked to end."""
        return self._start(name, work, kept=True)

    def errand(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread that ends by itself."""
        return self._start(name, work, kept=False)

    def _start(self, name: str, work: Callable[[], None], *, kept: bool) -> threading.Thread:
        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as problem:  # the main of a thread: nothing above it would tell anybody
                error = problem
            if kept or error is not None:
                self._ended(name, thread, error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


class VitalTasks(Vitals):
    """Of an owner that works on one event loop; to be made there."""

    def __init__(self, on_death: Callable[[Died], None] = _nobody) -> None:
        super().__init__(on_death)
        self._dead = asyncio.Event()

    def keep(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that goes on until it is cancelled, or released and asked to end."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._look_at_kept)
        return task

    def errand(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that ends by itself, or is cancelled."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._look_at_errand)
        return task

    async def wait_death(self) -> None:
        """Return once something has died."""
        await self._dead.wait()

    def _look_at_kept(self, task: "asyncio.Task[None]") -> None:
        self._look(task, _error_of(task))

    def _look_at_errand(self, task: "asyncio.Task[None]") -> None:
        error = _error_of(task)
        if error is not None:
            self._look(task, error)

    def _look(self, task: "asyncio.Task[None]", error: BaseException | None) -> None:
        if task.cancelling():
            return  # somebody has asked for its end
        self._ended(task.get_name(), task, error)
        if self.death is not None:
            self._dead.set()


def _error_of(task: "asyncio.Task[None]") -> BaseException | None:
    """A cancellation that came out of the work itself is as bad as any other exception."""
    return asyncio.CancelledError("it was cancelled by nobody") if task.cancelled() else task.exception()
