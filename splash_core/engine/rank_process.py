"""The process of one rank: `python -m splash_core.engine.rank_process`.

It executes the leader's steps strictly in order, pushes beside them, and knows nothing else of the world. It
begins with a step as soon as it is told, behind the one that the device is computing, and reports each when
it has ended.
Invariant: it never outlives its leader, and it never goes on after an exception: the leader is told, then the
process exits 1.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from splash_core.engine.fake import FakeEngine
from splash_core.engine.link_steps import LinkedEngine, StepEngine
from splash_core.engine.push_lane import PushLane
from splash_core.engine.pushing import Pusher
from splash_core.engine.running import RunningStep
from splash_core.ids import RankId
from splash_core.layout.slots import ArenaMap
from splash_core.obs import logging as logs
from splash_core.obs.lifeline import ProcessRef, die_with_parent
from splash_core.obs.vitals import Died, VitalThreads
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.abi import kv_abi
from splash_core.rpc.codec import plan_from_pb, process_to_pb, result_to_pb
from splash_core.rpc.link import VITALS_LANE, RankLink
from splash_core.rpc.rank_config import ELEM_BYTES, RankConfig
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.spec.model import ModelSpec
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.kinds import device_kind
from splash_core.transport.link import RankLinks
from splash_core.transport.memory import Memory
from splash_core.transport.reach import check_reach

_log = logging.getLogger("splash.rank")
_IDLE_POLL_S = 0.5
_LOOK_S = 1e-4
"""How often a rank looks for the next step while the device computes; it then waits for one or the other."""
_REPORT_S = 0.25


@contextmanager
def _engine(
    config: RankConfig,
    rank: RankId,
    *,
    memory: Memory,
    spec: ModelSpec,
    arena: ArenaMap,
    progress: Callable[[int, int], None],
) -> Iterator[StepEngine]:
    if config.engine == "fake":
        yield FakeEngine(
            rank=rank,
            num_ranks=config.num_ranks,
            vocab=spec.vocab,
            page_size=config.page_size,
            num_layers=spec.num_mla_layers,
            step_s=config.fake_step_s,
        )
        return
    # Imported here: torch takes seconds, and a rank without weights needs none of it.
    from splash_core.engine.loading import loaded_engine

    with loaded_engine(config, rank, memory=memory, spec=spec, arena=arena, progress=progress) as engine:
        yield engine


def _memory_of(config: RankConfig, rank: RankId) -> Callable[[int], Memory]:
    """Takes the arena's memory where the rank computes."""
    kind = device_kind(config.device)
    if kind is None:
        return ArenaMemory
    from splash_core.engine.loading import device_memory

    return partial(device_memory, config, rank, kind)


def _serve(link: RankLink, config: RankConfig, rank: RankId) -> None:
    began = time.perf_counter()
    vitals = VitalThreads(partial(tell_death, config.link, rank))
    check_reach(config.transport)
    spec = ModelSpec.from_checkpoint(Path(config.checkpoint), name=config.model_name)
    arena = ArenaMap.build(
        spec,
        num_ranks=config.num_ranks,
        page_size=config.page_size,
        elem_bytes=ELEM_BYTES[config.dtype],
        arena_bytes=config.arena_bytes,
    )
    abi = kv_abi(
        spec,
        dtype=config.dtype,
        page_size=config.page_size,
        fingerprint=config.fingerprint,
        transport=config.transport.speaks,
    )
    links = RankLinks.of(config.device, phase=config.link_limits, host=config.host_limits)
    with (
        Pusher.open(
            arena, abi, config.transport, links, take=_memory_of(config, rank), vitals=vitals
        ) as pusher,
        _engine(
            config, rank, memory=pusher.memory, spec=spec, arena=arena, progress=_LoadReports(link)
        ) as engine,
        PushLane(pusher, engine.progress, config.link, rank, (links.phase, links.host), vitals=vitals),
    ):
        address = common_pb2.RankAddress(rank=rank, transport=pusher.address, arena_bytes=arena.arena_bytes)
        ready = rank_pb2.RankReady(
            rank=rank,
            address=address,
            load_s=time.perf_counter() - began,
            arena_bytes=arena.arena_bytes,
            process=process_to_pb(ProcessRef.of(os.getpid())),
        )
        link.send(rank_pb2.FromRank(ready=ready))
        _log.info("ready after %.1f s", ready.load_s)
        run_steps(link, LinkedEngine(engine, *links.group), vitals, num_ranks=config.num_ranks)


def tell_death(address: str, rank: RankId, death: Died) -> None:
    """Tell the leader at `address` at once, from where the work ran: the step loop may be deep in a step."""
    link = RankLink(address, rank, lane=VITALS_LANE)
    try:
        link.send(rank_pb2.FromRank(failure=rank_pb2.RankFailure(rank=rank, error=str(death))))
    finally:
        link.close()


class _LoadReports:
    """Tells the leader how far the weights are, a few times a second."""

    def __init__(self, link: RankLink) -> None:
        self._link = link
        self._next = 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Called after each tensor."""
        now = time.monotonic()
        if now < self._next and done_bytes < total_bytes:
            return
        self._next = now + _REPORT_S
        loading = rank_pb2.RankLoading(done_bytes=done_bytes, total_bytes=total_bytes)
        self._link.send(rank_pb2.FromRank(loading=loading))


def run_steps(link: RankLink, engine: StepEngine, vitals: VitalThreads, *, num_ranks: int) -> None:
    """Execute steps until told to stop.

    Raises:
        Died: what the rank needs beside this loop has ended.
    """
    running: deque[RunningStep] = deque()
    while True:
        # With as many under way as there may be, no other message comes before one is reported.
        if running and (running[0].passed or len(running) == MOST_UNDER_WAY):
            link.send(rank_pb2.FromRank(step=result_to_pb(running.popleft().finish())))
        message = link.receive(0.0 if running else _IDLE_POLL_S)
        vitals.check()
        if message is None:
            if running:
                time.sleep(_LOOK_S)
            continue
        kind = message.WhichOneof("message")
        if kind == "step":
            running.append(engine.begin(plan_from_pb(message.step, num_ranks=num_ranks)))
        elif kind == "stop":
            return


def main() -> int:
    """Run one rank to its end; the exit code is 0 only after the leader's stop."""
    parser = argparse.ArgumentParser(description="One rank of a Splash worker group.")
    parser.add_argument("--config", type=Path, required=True, help="file written by the group's leader")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process that this one must not outlive")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    # A Ctrl-C in a terminal reaches the whole foreground group; ending ranks is the leader's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = RankConfig.read(arguments.config)
    rank = RankId(arguments.rank)
    logs.configure(
        f"{config.group}-rank-{rank}",
        run_dir=Path(config.log_dir),
        log_format=config.log_format,
        to_stderr=False,
    )
    link = RankLink(config.link, rank)
    try:
        _serve(link, config, rank)
    except Exception as error:  # a service main: whatever it is, the leader must hear of it
        _log.exception("rank %d failed", rank)
        failure = rank_pb2.RankFailure(rank=rank, error=f"{type(error).__name__}: {error}")
        link.send(rank_pb2.FromRank(failure=failure))
        return 1
    finally:
        link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
