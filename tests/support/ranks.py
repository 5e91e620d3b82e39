"""T engines that stay loaded and answer plans: on threads of this process, on gloo processes, or on GPUs."""

import multiprocessing
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from services.bench.histories import fill_pages
from splash_core.attention.context import RankContext
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.launch import Backend, LaunchConfig, rank_comms
from splash_core.dist.order import CPU
from splash_core.engine.engine import RankEngine
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.recorded_steps import record_decode_steps
from splash_core.engine.stream_lane import Gpu
from splash_core.ids import RankId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import STAGING_PARTS
from tests.support.thread_memory import ThreadSharing

ANSWER_WITHIN_S = 120
JOIN_WITHIN_S = 400
"""For ranks to come together: a fresh GPU machine reads gigabytes of libraries first."""
WHOLE_PAGES = 2
"""Pages of a rank that go whole in one transfer: as on machines, fewer than a request has."""
GraphsOf = Callable[[RankContext], DecodeGraphs]
"""Makes a rank's recorded decode steps."""
REPLAYS = "replays"
"""A message: how often each recorded step was replayed in this life, and through which communicator."""


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A message: what these pages hold is made up, from the key of each alone; before their first step."""

    pages: tuple[tuple[int, tuple[PageCopy, ...]], ...]
    """A key, and the copies."""


class Ranks(Protocol):
    """A message is a `Layout` (start a new life in it), a `StepPlan`, `REPLAYS`, `Fill`, or None (end)."""

    arena: ArenaMap
    spec: ModelSpec
    memories: list[torch.Tensor]

    def ask(self, message: Any) -> list[Any]: ...


class RankLoop:
    """One rank's engine between messages. Loaded images are kept, so a new life costs one copy."""

    def __init__(
        self,
        checkpoint: Path,
        arena: ArenaMap,
        memory: torch.Tensor,
        comms: RankComms,
        dtype: torch.dtype,
        graphs_of: GraphsOf | None = None,
        gpu: Callable[[], Gpu] | None = None,
    ) -> None:
        self._graphs_of, self._gpu = graphs_of, gpu
        self._checkpoint, self._arena, self._memory = checkpoint, arena, memory
        self._spec = ModelSpec.from_checkpoint(checkpoint)
        self._comms, self._dtype = comms, dtype
        self._loaded: dict[Layout, tuple[RankContext, torch.Tensor]] = {}
        self._recorded: dict[Layout, DecodeGraphs] = {}
        self._engine: RankEngine | None = None

    def answer(self, message: Any) -> Any:
        if message == REPLAYS:
            graphs = self._engine.graphs if self._engine is not None else None
            assert graphs is not None, "nothing is recorded"
            return dict(graphs.replays), type(self._comms.recorded).__name__
        if not isinstance(message, Layout):
            assert self._engine is not None
            if not isinstance(message, Fill):
                return self._engine.step(message)
            arena = self._engine.ctx.arena
            return fill_pages(arena, message.pages, rank=self._comms.compute.rank, seed=0)
        if message not in self._loaded:
            self._memory.zero_()
            engine = RankEngine.load(
                self._checkpoint,
                spec=self._spec,
                arena=self._arena,
                memory=self._memory,
                comms=self._comms,
                dtype=self._dtype,
                layout=message,
            )
            self._loaded[message] = engine.ctx, self._memory.clone()
        ctx, image = self._loaded[message]
        self._memory.copy_(image)
        self._engine = RankEngine(ctx, self._comms, message, self._graphs(message, ctx))
        self._engine.mover.whole_page_bytes = WHOLE_PAGES * self._arena.slot_bytes
        if self._gpu is not None:
            self._engine._gpu = self._gpu()
            self._engine.reserve_staging(STAGING_PARTS * WHOLE_PAGES * self._arena.slot_bytes)
        return comms_rank(self._comms)

    def _graphs(self, layout: Layout, ctx: RankContext) -> DecodeGraphs | None:
        if self._graphs_of is None:
            return None
        if layout not in self._recorded:
            self._recorded[layout] = self._graphs_of(ctx)
        self._recorded[layout].replays.clear()
        return self._recorded[layout]


def comms_rank(comms: RankComms) -> int:
    return int(comms.compute.rank)


class ThreadRanks:
    """Ranks as threads on one device; with `gpu` pages are pulled, on such streams."""

    def __init__(
        self,
        checkpoint: Path,
        arena: ArenaMap,
        *,
        dtype: torch.dtype = torch.float64,
        graphs_of: GraphsOf | None = None,
        gpu: Callable[[], Gpu] | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.arena, self.spec = arena, ModelSpec.from_checkpoint(checkpoint)
        sizes = [arena.arena_bytes] * arena.num_ranks
        self.memories = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]
        self._inboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(arena.num_ranks)]
        self._outboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(arena.num_ranks)]

        sharing = None if gpu is None else ThreadSharing(arena.num_ranks, device)

        def rank_main(comms: RankComms) -> None:
            rank, comms = comms_rank(comms), replace(comms, sharing=sharing)
            loop = RankLoop(checkpoint, arena, self.memories[rank], comms, dtype, graphs_of, gpu)
            _serve(loop, self._inboxes[rank].get, self._outboxes[rank].put)

        options = {"device": device, "timeout_s": 3600.0}
        self._thread = threading.Thread(
            target=run_ranks, args=(arena.num_ranks, rank_main), kwargs=options, daemon=True
        )
        self._thread.start()

    def ask(self, message: Any) -> list[Any]:
        assert self._thread.is_alive(), "the ranks have failed in an earlier test"
        for inbox in self._inboxes:
            inbox.put(message)
        return _checked([outbox.get(timeout=ANSWER_WITHIN_S) for outbox in self._outboxes])

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        self._thread.join(ANSWER_WITHIN_S)


class ProcessRanks:
    """Ranks as spawned processes.

    On CPU they talk over gloo, and arenas are shared memory, so a test can copy pages. On `cuda` rank i has
    GPU i and its arena there, which nobody else sees. With `buckets` all layouts' decode steps are recorded.
    """

    def __init__(
        self,
        checkpoint: Path,
        arena: ArenaMap,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        buckets: Sequence[int] = (),
    ) -> None:
        self.arena, self.spec = arena, ModelSpec.from_checkpoint(checkpoint)
        shared = [] if device == "cuda" else range(arena.num_ranks)
        self.memories = [torch.zeros(arena.arena_bytes, dtype=torch.uint8).share_memory_() for _ in shared]
        context = multiprocessing.get_context("spawn")
        self._joined = False
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(arena.num_ranks):
            here, there = context.Pipe()
            process = context.Process(
                target=_process_main,
                args=(
                    rank,
                    checkpoint,
                    portable(arena, dtype),
                    None if device == "cuda" else self.memories[rank],
                    folder,
                    there,
                    dtype,
                    tuple(buckets),
                ),
                daemon=True,
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, message: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(message)
        answers = []
        for rank, pipe in enumerate(self._pipes):
            within_s = ANSWER_WITHIN_S if self._joined else JOIN_WITHIN_S
            assert pipe.poll(within_s), f"rank {rank} does not answer {message!r:.80} within {within_s} s"
            try:
                answers.append(pipe.recv())
            except EOFError:
                self._processes[rank].join(ANSWER_WITHIN_S)
                code = self._processes[rank].exitcode
                raise AssertionError(
                    f"rank {rank} ended with {code} instead of answering; stderr says why"
                ) from None
        self._joined = True
        return _checked(answers)

    def close(self) -> None:
        with suppress(OSError):  # a rank that failed is gone
            for pipe in self._pipes:
                pipe.send(None)
        for process in self._processes:
            process.join(ANSWER_WITHIN_S)
        codes = [process.exitcode for process in self._processes]
        for process in self._processes:
            process.kill()
        assert codes == [0] * len(codes), f"exit codes of the ranks; None: still running: {codes}"


def _process_main(
    rank: int,
    checkpoint: Path,
    arena_arguments: dict[str, int],
    memory: torch.Tensor | None,
    folder: Path,
    pipe: Connection,
    dtype: torch.dtype,
    buckets: tuple[int, ...],
) -> None:
    torch.set_num_threads(1)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = ArenaMap.build(spec, **arena_arguments)
    on_gpu = memory is None
    config = LaunchConfig(
        rank=RankId(rank),
        num_ranks=arena.num_ranks,
        rendezvous=f"file://{folder}/rendezvous",
        backend=Backend.NCCL if on_gpu else Backend.GLOO,
        device=torch.device("cuda", rank) if on_gpu else torch.device("cpu"),
        join_timeout_s=JOIN_WITHIN_S,
    )
    with rank_comms(config) as comms:
        if memory is None:
            memory = torch.zeros(arena.arena_bytes, dtype=torch.uint8, device=comms.device)

        def recorded(ctx: RankContext) -> DecodeGraphs:
            return record_decode_steps(
                ctx, layouts=list(Layout), buckets=buckets, comm=comms.recorded, budget_bytes=1 << 40
            )

        graphs_of = recorded if buckets else None
        _serve(RankLoop(checkpoint, arena, memory, comms, dtype, graphs_of), pipe.recv, pipe.send)


def portable(arena: ArenaMap, dtype: torch.dtype) -> dict[str, int]:
    """What `ArenaMap.build` needs to make the same map in another process."""
    return {
        "num_ranks": arena.num_ranks,
        "page_size": arena.page_size,
        "elem_bytes": dtype.itemsize,
        "arena_bytes": arena.arena_bytes,
    }


def _serve(loop: RankLoop, receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    while (message := receive()) is not None:
        try:
            send(loop.answer(message))
        except Exception as failure:
            send(failure)
            raise


def _checked(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers
