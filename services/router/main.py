"""The router process: gateway and admin port in one event loop, clients of the prefill and decode leaders.

Invariant: at SIGTERM the router turns unready first, then refuses new requests, then ends with the last
answer, or cuts what is left of them, and closes its ports.
"""

import asyncio
import contextlib
import json
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from services.listening import listen
from services.router.admin import Admin
from services.router.config import RouterConfig
from services.router.correctness_admin import ProbeAdmin, probe_watch
from services.router.correctness_watch import ProbeWatch
from services.router.dispatch import Dispatcher, DispatchSettings
from services.router.drain import drain, first_of
from services.router.gateway import Gateway, Sources
from services.router.generation import Generator
from services.router.metrics import Metrics
from services.router.policy_admin import PolicyAdmin
from services.router.policy_service import PolicyService
from services.router.registry import Registry
from services.router.running import RunningAnswers
from services.router.tokenizer import Tokenizer, read_eos_ids
from services.router.validate import ReaderSettings, RequestReader
from services.router.weights import RoutedModel
from services.router.worker import GrpcWorker
from splash_core.dispatch.admission import QueueLimits
from splash_core.obs.vitals import VitalTasks

_SEED_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a started router listens."""

    port: int
    admin_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """One router, ready to be served."""

    registry: Registry
    dispatcher: Dispatcher
    policy: PolicyService
    probes: ProbeWatch
    answers: RunningAnswers
    gateway: Starlette
    admin: Starlette

    async def start(self, vitals: VitalTasks) -> None:
        """Ask the groups for their state, give them the policy, and watch their answers."""
        await self.registry.start(vitals)
        await self.policy.start(vitals)
        await self.probes.start(vitals)

    async def stop(self) -> None:
        """Leave the groups alone."""
        await self.probes.stop()
        await self.policy.stop()
        await self.registry.stop()


def build(config: RouterConfig) -> Router:
    """Put the router together; must run inside the event loop that will serve it."""
    workers = {
        "prefill": [GrpcWorker(address) for address in config.prefill],
        "decode": [GrpcWorker(address) for address in config.decode],
    }
    sources = Sources(monotonic=time.monotonic, wall=time.time, new_id=lambda: secrets.token_hex(12))
    registry = Registry(
        workers,
        clock=sources.monotonic,
        poll_interval_s=config.poll_interval_s,
        poll_timeout_s=config.poll_timeout_s,
        served=RoutedModel(name=config.model.name, fingerprint=config.fingerprint)
        if config.fingerprint
        else None,
    )
    dispatcher = Dispatcher(registry, _dispatch_settings(config), clock=sources.monotonic)
    tokenizer, metrics, answers = Tokenizer.load(config.model), Metrics(), RunningAnswers()
    gateway = Gateway(
        config=config,
        registry=registry,
        dispatcher=dispatcher,
        tokenizer=tokenizer,
        reader=RequestReader(
            tokenizer, _reader_settings(config), random_seed=lambda: secrets.randbits(_SEED_BITS)
        ),
        generator=Generator(dispatcher, tokenizer, metrics, clock=sources.monotonic),
        metrics=metrics,
        answers=answers,
        sources=sources,
    )
    policy = PolicyService(config.policy, registry, metrics)
    probes = probe_watch(config, dispatcher=dispatcher, tokenizer=tokenizer, metrics=metrics, sources=sources)
    admin = Admin(
        config=config,
        registry=registry,
        dispatcher=dispatcher,
        policy=PolicyAdmin(service=policy),
        probes=ProbeAdmin(watch=probes),
        answers=answers,
    )
    return Router(
        registry=registry,
        dispatcher=dispatcher,
        policy=policy,
        probes=probes,
        answers=answers,
        gateway=gateway.app(),
        admin=admin.app(),
    )


async def serve(
    config: RouterConfig,
    *,
    stop: asyncio.Event,
    force: asyncio.Event | None = None,
    on_start: Callable[[Ports], None] | None = None,
) -> None:
    """Serve until `stop` is set and running answers have ended (or `force` is set).

    Args:
        config: the settings.
        stop: drain and end.
        force: end without waiting for answers.
        on_start: called once both ports accept connections.

    Raises:
        Died: it has ended because something that it needs had; running answers were given their time.
        AnswersCut: it has ended, and running answers took longer than their time.
    """
    router = build(config)
    listeners = _listeners(config)
    servers = [_server(app) for app in (router.gateway, router.admin)]
    vitals = VitalTasks()
    await router.start(vitals)
    running = [
        vitals.keep(name, server.serve(sockets=[listener]))
        for name, server, listener in zip(("gateway", "admin port"), servers, listeners, strict=True)
    ]
    try:
        ports = Ports(port=listeners[0].getsockname()[1], admin_port=listeners[1].getsockname()[1])
        _announce(config, ports, on_start)
        await first_of(stop.wait(), vitals.wait_death())
        forced = force or asyncio.Event()
        cut = await drain(config, router.dispatcher, router.answers, servers, forced)
        for task in running:
            vitals.release(task)
        await _close(servers, running, forced)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await router.stop()
        for listener in listeners:
            listener.close()
        if config.ports_file is not None:
            config.ports_file.unlink(missing_ok=True)
    vitals.check()
    if cut is not None:
        raise cut


def run(config: RouterConfig) -> int:
    """The body of `splash router`: serve until SIGTERM or SIGINT; a second signal ends at once."""

    async def main() -> None:
        stop, force = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: (force if stop.is_set() else stop).set())
        await serve(config, stop=stop, force=force)

    asyncio.run(main())
    return 0


def _listeners(config: RouterConfig) -> list[socket.socket]:
    listeners = [
        listen(config.host, config.port, flag="--port"),
        listen(config.admin_host, config.admin_port, flag="--admin-port"),
    ]
    for listener in listeners:
        listener.setblocking(False)  # noqa: FBT003 (the socket's own signature)
    return listeners


async def _close(
    servers: Sequence[uvicorn.Server], running: Sequence["asyncio.Task[None]"], forced: asyncio.Event
) -> None:
    """End servers that answer nothing any more."""
    for server in servers:
        server.should_exit = True
    await first_of(asyncio.wait(running), forced.wait())
    for server in servers:
        server.force_exit = True
    await asyncio.wait(running)


class _Server(uvicorn.Server):
    """Signals belong to the process, not to one of its two servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Starlette) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            # Longer than clients keep idle connections, so that they are closed by the client.
            timeout_keep_alive=75,
            # Answers have ended by then; what is left are connections between two requests.
            timeout_graceful_shutdown=1,
        )
    )


def _announce(config: RouterConfig, ports: Ports, on_start: Callable[[Ports], None] | None) -> None:
    """Tell whoever started this router where it listens; the sockets accept already."""
    if config.ports_file is not None:
        partial = config.ports_file.with_suffix(".partial")
        partial.write_text(json.dumps({"port": ports.port, "admin_port": ports.admin_port}))
        partial.rename(config.ports_file)
    if on_start is not None:
        on_start(ports)


def _dispatch_settings(config: RouterConfig) -> DispatchSettings:
    limits = QueueLimits(requests=config.max_queued_requests, prompt_tokens=config.max_queued_tokens)
    return DispatchSettings(
        limits=limits,
        expected_output_tokens=config.expected_output_tokens,
        kv_overcommit=config.kv_overcommit,
    )


def _reader_settings(config: RouterConfig) -> ReaderSettings:
    return ReaderSettings(
        names=config.accepted_names,
        eos_ids=read_eos_ids(config.model),
        max_choices=config.max_choices,
        max_logprobs=config.max_logprobs,
        max_output_tokens=config.max_output_tokens,
    )
