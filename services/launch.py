"""One host's stack as a value: start it, use its URLs, stop it. `splash up`, the demo and tests share it.

Invariant: `start` either returns with everything ready, or raises with the cause and leaves no process.
"""

import contextlib
import dataclasses
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import httpx

from services.children import Child, Death, error_of
from services.exit_codes import Exit
from services.listening import check_free, free_port, url_of
from services.router.tokenizer import tokenizer_file
from services.run_folders import run_folder
from splash_core.config import (
    GroupSettings,
    RouterSettings,
    UpSettings,
)
from splash_core.cost.measured_on import warning
from splash_core.errors import ConfigError, GroupFailed, SplashError, Unavailable
from splash_core.leader.build import draw_blueprint, resolve_model
from splash_core.leader.gpus import check_gpus, stack_gpus
from splash_core.leader.reaching import transport_options
from splash_core.policy.snapshot import Phase
from splash_core.rpc.socket_folder import SocketFolder
from splash_core.settings_base import as_flags, shared_fields
from splash_core.transport.reach import check_reach

PREFILL, DECODE, ROUTER = "prefill-0", "decode-0", "router"
_POLL_S, _FAREWELL_S = 0.05, 4.0
_MAX_FOLDER = 68
"""Unix socket paths end at 107 bytes; the sockets' own names need the rest."""


class StackFailed(GroupFailed):
    """A process of the stack has died."""

    def __init__(self, death: Death, run_dir: Path) -> None:
        super().__init__(f"{death}; logs are in {run_dir}")
        self.death = death

    @property
    def refused(self) -> bool:
        """True when the process would not start with its settings, and told why."""
        return self.death.code in (Exit.USAGE, Exit.INFEASIBLE)


class StartInterrupted(Exception):
    """The caller gave up waiting for the start."""


Progress = Callable[[str, str, float], None]
"""Called with (process, state, fraction done) while everything starts."""


class Stack:
    """Router, one prefill group and one decode group as child processes of this one.

    A context manager: `with Stack(settings) as stack: httpx.get(stack.url + "/v1/models")`. Start it from a
    thread that lives as long as the stack: the kernel ties the children to the thread that started them.
    """

    def __init__(self, settings: UpSettings) -> None:
        if settings.port and settings.port == settings.admin_port:
            raise ConfigError(
                f"--port and --admin-port are both {settings.port}; choose another for one of them"
            )
        port = settings.port or free_port(settings.host, taken=settings.admin_port)
        admin_port = settings.admin_port or free_port(flag="--admin-port", taken=port)
        self.settings = dataclasses.replace(settings, port=port, admin_port=admin_port)
        self.run_dir = run_folder(settings.run_dir)
        self._sockets = SocketFolder(self.run_dir / "sockets", most=_MAX_FOLDER)
        self._children: dict[str, Child] = {}
        self.warning = ""
        """What it starts in spite of; known once it does."""

    @property
    def url(self) -> str:
        """Base URL of the gateway."""
        return url_of(self.settings.host, self.settings.port)

    @property
    def admin_url(self) -> str:
        """Base URL of the admin port."""
        return f"http://127.0.0.1:{self.settings.admin_port}"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: prefill-0, decode-0, router."""
        return {name: child.pid for name, child in self._children.items()}

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=error is None)

    def start(self, progress: Progress | None = None, *, interrupted: threading.Event | None = None) -> None:
        """Start everything and wait until the gateway is ready.

        Args:
            progress: told of every process's state.
            interrupted: set it from elsewhere to give up.

        Raises:
            StackFailed: a process died; carries the cause.
            StartInterrupted: `interrupted` was set.
            Unavailable: not ready within `start_timeout_s`.
        """
        report = progress or _ignore
        try:
            groups = self._checked_groups()
            interrupted = interrupted or threading.Event()
            if interrupted.is_set():
                raise StartInterrupted
            self._launch(groups, report)
            self._await_ready(report, interrupted)
        except BaseException:
            self.stop(drain=False)
            if not self._children and not self.settings.run_dir:
                # Nothing has run, so there is nothing to keep.
                with contextlib.suppress(OSError):
                    self.run_dir.rmdir()
            raise

    def _checked_groups(self) -> dict[str, GroupSettings]:
        """The groups' settings; what cannot work is said here, by this process, before anything is started.

        Sizes taken from free memory are fixed here too: a group that starts later would find less.
        """
        settings = self.settings
        tokenizer_file(resolve_model(settings.model))
        gpus = stack_gpus(settings)
        groups = {
            PREFILL: self._group(PREFILL, settings.prefill_ranks, settings.prefill_layout, gpus[0]),
            DECODE: self._group(DECODE, settings.decode_ranks, settings.decode_layout, gpus[1]),
        }
        check_reach(transport_options(groups[PREFILL]))
        for name, phase in ((PREFILL, Phase.PREFILL), (DECODE, Phase.DECODE)):
            try:
                check_gpus(groups[name])
                blueprint = draw_blueprint(groups[name], phase)
            except SplashError as error:
                raise _named_by(phase, error) from error
            arena = blueprint.arena
            self.warning = warning(blueprint.profile, blueprint.spec)
            kv_bytes = arena.num_ordinary * arena.slot_bytes
            groups[name] = dataclasses.replace(groups[name], kv_bytes=kv_bytes)
        check_free(settings.host, settings.port, flag="--port")
        check_free("127.0.0.1", settings.admin_port, flag="--admin-port")
        return groups

    def _launch(self, groups: Mapping[str, GroupSettings], report: Progress) -> None:
        own = {"prefill": self._listen(PREFILL), "decode": self._listen(DECODE)}
        router = RouterSettings(**self._shared(RouterSettings) | own)  # type: ignore[arg-type]
        self._sockets.open()
        for name, command, flags in (
            (PREFILL, "prefill", as_flags(groups[PREFILL])),
            (DECODE, "decode", as_flags(groups[DECODE])),
            (ROUTER, "router", as_flags(router)),
        ):
            self._children[name] = Child(name, [command, *flags], run_dir=self.run_dir)
            report(name, "starting", 0.0)

    def _group(self, name: str, ranks: int, layout: str, gpus: str) -> GroupSettings:
        settings = self.settings
        own = {
            "group": name,
            "ranks": ranks,
            "layout": layout,
            "gpus": gpus,
            "port": 0,
            "host_ranks": settings.prefill_ranks + settings.decode_ranks,
            "listen": self._listen(name),
            "socket_dir": str(self._sockets.path),
        }
        return GroupSettings(**self._shared(GroupSettings) | own)  # type: ignore[arg-type]

    def _shared(self, kind: type) -> dict[str, object]:
        return shared_fields(self.settings, kind) | {"run_dir": str(self.run_dir)}

    def _listen(self, name: str) -> str:
        return f"unix:{self._sockets.path / name}.grpc"

    def _await_ready(self, report: Progress, interrupted: threading.Event) -> None:
        end = time.monotonic() + self.settings.start_timeout_s
        pending = {PREFILL, DECODE}
        while time.monotonic() < end:
            if interrupted.is_set():
                raise StartInterrupted
            self.check()
            for name in tuple(pending):
                if (self.run_dir / f"{name}.ready").exists():
                    pending.remove(name)
                    report(name, "ready", 1.0)
                else:
                    report(name, "loading", self._loaded(name))
            if not pending and self._gateway_ready():
                report(ROUTER, "ready", 1.0)
                return
            time.sleep(_POLL_S)
        late = ", ".join(sorted(pending)) or "the gateway"
        raise Unavailable(
            f"{late} was not ready within {self.settings.start_timeout_s:g} s; logs are in {self.run_dir}"
        )

    def _loaded(self, name: str) -> float:
        """How much of its weights a group has read."""
        try:
            done, _, total = (self.run_dir / f"{name}.progress").read_text().partition(" ")
            return int(done) / max(int(total), 1)
        except (FileNotFoundError, ValueError):
            # Not begun, or caught half written.
            return 0.0

    def _gateway_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def check(self) -> None:
        """Return if all processes run.

        Raises:
            StackFailed: one has died; names it, how it ended, and its last error.
        """
        for child in self._children.values():
            death = child.death()
            if death is not None:
                raise StackFailed(death, self.run_dir)

    def stop(self, *, drain: bool = True, hurry: threading.Event | None = None) -> None:
        """End everything: the router first, so that nothing new arrives, then the groups.

        Args:
            drain: let running requests finish (for at most `drain_timeout_s`); otherwise seconds.
            hurry: set it from elsewhere to end what still runs at once.
        """
        # The router also needs time to turn unready before, and to tell clients of the end after.
        grace_s = self.settings.drain_timeout_s + 10.0 if drain else 3.0
        stages = ((ROUTER,), (PREFILL, DECODE)) if drain else ((ROUTER, PREFILL, DECODE),)
        for stage in stages:
            children = [self._children[name] for name in stage if name in self._children]
            for child in children:
                child.terminate()
            end = time.monotonic() + grace_s
            for child in children:
                child.wait(max(0.0, end - time.monotonic()), hurry=hurry)
                if child.name == ROUTER and hurry is not None and hurry.is_set():
                    # It ends its answers itself: a killed one would cut them without a word.
                    child.terminate()
                    child.wait(_FAREWELL_S)
                child.kill()
        shutil.rmtree(self._sockets.path, ignore_errors=True)
        self._sockets.close()

    def cut_short(self) -> str:
        """What the router of a stopped stack could not let end, in its words; empty if it could."""
        death = self._children[ROUTER].death() if ROUTER in self._children else None
        return error_of(death.lines) if death is not None and death.code == Exit.FAILED else ""


def _named_by(phase: Phase, error: SplashError) -> SplashError:
    """An error of one group's settings, with the names that `splash up` has for them."""
    text = re.sub(r"--(ranks|layout|gpus)(?![\w-])", rf"--{phase.value}-\1", str(error))
    return type(error)(text) if text != str(error) else error


def _ignore(process: str, state: str, done: float) -> None:
    """No progress wanted."""
