"""The life of a leader process: start ranks, serve, drain or fail, exit.

    starting   the port answers; Describe says "starting"; ranks load
    ready      the ready file exists; requests run
    draining   after SIGTERM or SIGINT: no new requests, those running finish
    failed     a rank died or hung: every open request hears GroupFailed, then the process exits 1

Invariant: the process ends in bounded time in each of these, and no rank process outlives it.
"""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import grpc.aio

from splash_core.cost.measured_on import warning
from splash_core.errors import ConfigError, GroupFailed
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.control import ControlServicer
from splash_core.leader.gpus import group_gpus
from splash_core.leader.host import reachable_host, threads_per_rank
from splash_core.leader.leader import GroupLeader
from splash_core.leader.pace import StepPace
from splash_core.leader.rank_child import RankCommand, rank_command
from splash_core.leader.ranks import RankPool
from splash_core.leader.steering import Steering
from splash_core.pb import control_pb2_grpc, rank_pb2
from splash_core.rpc.channels import MAX_MESSAGE_BYTES
from splash_core.rpc.keepalive import server_keepalive
from splash_core.rpc.link import LeaderLink, ipc_address
from splash_core.rpc.rank_config import RankConfig
from splash_core.rpc.socket_folder import SocketFolder
from splash_core.transport.kinds import memory_kind

_log = logging.getLogger("splash.leader")
_FAREWELL_S = 1.0
"""After a failure, how long open calls get to carry the error to their callers."""
_MAX_FOLDER = 80
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    *server_keepalive(),
)


class PhaseService(Protocol):
    """What a phase adds to a group: its gRPC service and its part at start and end."""

    def attach(self, server: grpc.aio.Server) -> None:
        """Register the phase's servicer."""
        ...

    def ready(self, ranks: tuple[rank_pb2.RankReady, ...], address: str) -> None:
        """The group becomes ready; others reach it at `address`."""
        ...

    async def close(self) -> None:
        """Let go of connections; handovers under way have ended."""
        ...


class WallClock:
    """Seconds since the epoch that never go back: the wall clock at start plus monotonic time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._offset + time.monotonic()


class GroupProcess:
    """One leader process."""

    def __init__(
        self,
        blueprint: GroupBlueprint,
        make_phase: Callable[[GroupBlueprint, GroupLeader], PhaseService],
        command: RankCommand = rank_command,
    ) -> None:
        """Nothing is started yet; `command` starts a rank."""
        self._command = command
        self._blueprint = blueprint
        self._make_phase = make_phase
        settings = blueprint.settings
        self._folder = Path(settings.run_dir) / blueprint.group
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ready_file = Path(settings.run_dir) / f"{blueprint.group}.ready"
        self._ready_file.unlink(missing_ok=True)
        self._progress_file = self._ready_file.with_suffix(".progress")
        # A fresh one in each life of the group: old entries would name ranks that are gone.
        self._meeting = self._folder / f"meet-{blueprint.incarnation}"
        wanted = Path(settings.socket_dir) / blueprint.group if settings.socket_dir else self._folder
        self._sockets = SocketFolder(wanted, most=_MAX_FOLDER)
        self.address = ""

    async def run(self) -> int:
        """Serve until told to stop; returns the exit code."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, asked.set)
        self._sockets.open()
        link = LeaderLink(ipc_address(self._sockets.path))
        ranks = RankPool(
            self.rank_config(link.address),
            link,
            folder=self._folder,
            on_loading=self._tell_progress,
            command=self._command,
        )
        leader = self._leader(ranks)
        control = ControlServicer(self._blueprint, leader)
        phase = self._make_phase(self._blueprint, leader)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        control_pb2_grpc.add_ControlServicer_to_server(control, server)
        phase.attach(server)
        try:
            await self._listen(server)
            return await self._live(leader, ranks, control, phase, server, asked)
        finally:
            await server.stop(0)
            await ranks.stop()
            await phase.close()
            link.close()
            self._sockets.close()
            for left in (self._ready_file, self._progress_file, self._meeting):
                left.unlink(missing_ok=True)

    async def _live(
        self,
        leader: GroupLeader,
        ranks: RankPool,
        control: ControlServicer,
        phase: PhaseService,
        server: grpc.aio.Server,
        asked: asyncio.Event,
    ) -> int:
        settings = self._blueprint.settings
        starting = asyncio.create_task(
            ranks.start(parent_pid=os.getpid(), timeout_s=settings.start_timeout_s)
        )
        stop = asyncio.create_task(asked.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        try:
            ready = starting.result()
        except GroupFailed as error:
            leader.fail(error)
            return 1
        phase.ready(ready, settings.advertise or self._reachable())
        control.ranks_ready(ready)
        running = asyncio.create_task(leader.run())
        self._announce()
        await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            _log.info("draining")
            left = await leader.drain(settings.drain_timeout_s)
            if left:
                _log.warning("%d requests were still open after %g s", left, settings.drain_timeout_s)
            leader.stop()
        try:
            await running
        except GroupFailed as error:
            _log.error("%s", error)
            await server.stop(_FAREWELL_S)
            return 1
        stop.cancel()
        return 0

    def _leader(self, ranks: RankPool) -> GroupLeader:
        blueprint = self._blueprint
        clock = WallClock()
        scheduler = blueprint.scheduler(clock)
        pace = StepPace()
        steering = Steering(
            scheduler,
            model=blueprint.cost_model(),
            policy=blueprint.policy,
            pace=pace,
            clock=clock,
        )
        return GroupLeader(
            scheduler,
            ranks,
            steering,
            pace,
            step_timeout_s=blueprint.settings.step_timeout_s,
            shared_link_bps=blueprint.shared_link_bps,
        )

    async def _listen(self, server: grpc.aio.Server) -> None:
        settings = self._blueprint.settings
        wanted = settings.listen or f"{settings.host}:{settings.port}"
        try:
            port = server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {wanted}: {error}; choose another --port, or 0 for a free one"
            ) from error
        self.address = wanted if wanted.startswith("unix:") else f"{settings.host}:{port}"
        await server.start()

    def _reachable(self) -> str:
        """Our address as other groups may use it: nobody can connect to "any address" of another host."""
        host, colon, port = self.address.rpartition(":")
        return self.address if self.address.startswith("unix:") else f"{reachable_host(host)}{colon}{port}"

    def _tell_progress(self, done_bytes: int, total_bytes: int) -> None:
        """Whoever waits for the start may read how far the weights are."""
        self._progress_file.write_text(f"{done_bytes} {total_bytes}")

    def _announce(self) -> None:
        line = {"group": self._blueprint.group, "address": self.address, "pid": os.getpid()}
        draft = self._ready_file.with_suffix(".draft")
        draft.write_text(json.dumps(line))
        draft.rename(self._ready_file)
        _log.info("ready on %s, layout %s", self.address, self._blueprint.layout)
        if text := warning(self._blueprint.profile, self._blueprint.spec):
            _log.warning("%s", text)

    def rank_config(self, link: str) -> RankConfig:
        """What the ranks are told; `link` is the leader's address for them."""
        blueprint, settings = self._blueprint, self._blueprint.settings
        return RankConfig(
            group=blueprint.group,
            engine=settings.engine,
            checkpoint=str(blueprint.checkpoint),
            model_name=blueprint.spec.name,
            fingerprint=blueprint.fingerprint,
            num_ranks=settings.ranks,
            layout=blueprint.layout,
            device=settings.device,
            dtype=blueprint.dtype,
            page_size=settings.page_size,
            arena_bytes=blueprint.arena.arena_bytes,
            staging_bytes=settings.staging_bytes,
            transfer_max_ctas=settings.transfer_max_ctas,
            switch_layers_ahead=settings.switch_layers_ahead,
            link=link,
            rendezvous=f"file://{self._meeting.resolve()}",
            log_dir=str(self._folder),
            log_format=settings.log_format,
            threads=threads_per_rank(settings.host_ranks or settings.ranks),
            start_timeout_s=settings.start_timeout_s,
            step_timeout_s=settings.step_timeout_s,
            graph_layouts=blueprint.recorded_layouts,
            graph_buckets=blueprint.recorded_buckets,
            graph_bytes=settings.graph_bytes,
            link_bytes_per_s=settings.link_bytes_per_s,
            link_chunk_bytes=settings.link_chunk_bytes or memory_kind(settings.device).chunk_bytes,
            link_in_flight=settings.link_in_flight,
            link_pause_s=settings.link_pause_s,
            gpus=group_gpus(settings),
            dummy_seed=settings.dummy_seed if settings.load_format == "dummy" else None,
            fake_step_s=settings.fake_step_s,
            transport=blueprint.transport,
        )
