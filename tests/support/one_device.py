"""T ranks as threads on one device: the same checks run with four ranks on one GPU, and on the CPU.

On a GPU each rank computes on a stream of its own, its moves run on two more, and the host waits for none of
them. What needs a GPU for each rank is not covered: NCCL, CUDA graphs, memory of peers. On the CPU the ranks
that pull use stand-ins for streams, which do everything when it is asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from splash_core.attention.context import RankContext
from splash_core.dist.comm import RankComms, Transfer
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.rows import as_bytes
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.recording import Rerun
from splash_core.engine.static_backends import decode_graphs
from splash_core.engine.stream_lane import CudaGpu, Gpu
from splash_core.ids import RankId
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.churned_switches import BUCKETS, WatchedRanks
from tests.support.engine_cases import (
    check_mixed,
    check_spilled_pages,
    check_switched_rows,
    check_tokens_over_a_switch,
    generate,
    logits_on_rank,
    mixed_plans,
    switching_plans,
)
from tests.support.fake_gpu import ImmediateGpu
from tests.support.group import Group, arena_with
from tests.support.logit_engine import RowKey, merged_rows
from tests.support.plans import PlanBuilder
from tests.support.ranks import WHOLE_PAGES, GraphsOf, ThreadRanks, portable
from tests.support.thread_memory import ThreadMemory, ThreadSharing

_FP32_BYTES = 4


def one_gpu() -> torch.device:
    """The machine's first GPU; without one the test fails, since it was asked for with `-m gpu`."""
    assert torch.cuda.device_count() > 0, "torch sees no GPU"
    return torch.device("cuda", 0)


def streams_on(device: torch.device) -> Callable[[], Gpu]:
    """Makes a rank's streams."""
    return partial(CudaGpu, device) if device.type == "cuda" else ImmediateGpu


@dataclass(frozen=True)
class OneDevice:
    """Ranks that share a device and a model.

    Attributes:
        device: the device.
        checkpoint: the model.
        num_ranks: T.
        pulls: whether ranks pull state from each other's memory or exchange it.
    """

    device: torch.device
    checkpoint: Path
    num_ranks: int
    pulls: bool

    def check_logits(self, layout: Layout) -> None:
        """Chunks and decode rows in one layout are the reference's."""
        spec = ModelSpec.from_checkpoint(self.checkpoint)
        arena = arena_with(spec, num_ranks=self.num_ranks, page_size=4, elem_bytes=_FP32_BYTES, ordinary=40)
        plans = mixed_plans(spec, PlanBuilder(arena, layout))
        rows, _ = self._run(portable(arena, torch.float32), layout, plans)
        check_mixed(self.checkpoint, rows, f"{layout} T={self.num_ranks} on {self.device}")

    def check_switch(self, before: Layout, after: Layout, mode: SwitchMode) -> None:
        """A switch brings the bytes of its manifest, and rows after it are the reference's."""
        spec = ModelSpec.from_checkpoint(self.checkpoint)
        arena = arena_with(spec, num_ranks=self.num_ranks, page_size=4, elem_bytes=_FP32_BYTES, ordinary=40)
        plans = switching_plans(spec, arena, before, after, mode)
        rows, received = self._run(portable(arena, torch.float32), before, plans)
        check_switched_rows(self.checkpoint, plans, rows, received)

    def _run(
        self, arena_arguments: dict[str, int], layout: Layout, plans: list[StepPlan]
    ) -> tuple[dict[RowKey, Tensor], list[int]]:
        sharing = ThreadSharing(self.num_ranks, self.device) if self.pulls else None

        def rank_main(comms: RankComms) -> tuple[dict[RowKey, Tensor], int]:
            rows, received, _ = logits_on_rank(
                replace(comms, sharing=sharing), self.checkpoint, arena_arguments, layout, plans, self.pulls
            )
            return rows, received

        answers = run_ranks(self.num_ranks, rank_main, device=self.device)
        return merged_rows(rows for rows, _ in answers), [received for _, received in answers]

    @contextmanager
    def group(self, *, page_size: int, ordinary: int) -> "Iterator[SharingGroup]":
        """A block with ranks that stay."""
        with self._ranks(page_size=page_size, ordinary=ordinary) as ranks:
            yield SharingGroup(Group(ranks), self.checkpoint)

    @contextmanager
    def recorded_group(self) -> Iterator[Group]:
        """A block with ranks whose decode steps are recorded, for `Churn`; a replay runs the step again."""
        with self._ranks(page_size=4, ordinary=120, graphs_of=_recorded) as ranks:
            yield Group(WatchedRanks(ranks))

    @contextmanager
    def _ranks(
        self, *, page_size: int, ordinary: int, graphs_of: GraphsOf | None = None
    ) -> Iterator[ThreadRanks]:
        spec = ModelSpec.from_checkpoint(self.checkpoint)
        arena = arena_with(
            spec, num_ranks=self.num_ranks, page_size=page_size, elem_bytes=_FP32_BYTES, ordinary=ordinary
        )
        ranks = ThreadRanks(
            self.checkpoint,
            arena,
            dtype=torch.float32,
            graphs_of=graphs_of,
            gpu=streams_on(self.device) if self.pulls else None,
            device=self.device,
        )
        try:
            yield ranks
        finally:
            ranks.close()


@dataclass
class SharingGroup:
    """A group on one device; a few pages at a time are staged, so that chunks take turns."""

    group: Group
    checkpoint: Path
    _unswitched: dict[Layout, dict[str, list[int]]] = field(default_factory=dict)

    def check_tokens(self, before: Layout, after: Layout, mode: SwitchMode) -> None:
        """Greedy tokens over a switch are those without."""
        if before not in self._unswitched:
            self._unswitched[before], none = generate(self.group, before)
            assert none == []
        check_tokens_over_a_switch(
            self.group, self._unswitched[before], before, after, mode, staging_bytes=self._staging_bytes
        )

    def check_spilled_pages(self) -> None:
        """Pages in borrowed slots are moved away in time."""
        check_spilled_pages(self.group, self.checkpoint, staging_bytes=self._staging_bytes)

    @property
    def _staging_bytes(self) -> int:
        return WHOLE_PAGES * self.group.arena.slot_bytes


def _recorded(ctx: RankContext) -> DecodeGraphs:
    graphs = decode_graphs(ctx, buckets=BUCKETS, recorder=Rerun())
    for layout in Layout:
        graphs.record(layout)
    return graphs


def check_order(device: torch.device, num_ranks: int, stand_still: Callable[[], object]) -> None:
    """Ranks read what peers wrote, however late a peer's device comes to it, and nothing that it wrote later.

    Args:
        device: of all ranks.
        num_ranks: T.
        stand_still: keeps the calling rank's stream busy for a while.
    """
    memory = ThreadMemory(num_ranks, 1024, device)

    def rank_main(comms: RankComms) -> list[list[list[float]]]:
        me = comms.compute.rank
        peers = [RankId(peer) for peer in range(num_ranks) if peer != me]
        seen: list[list[Tensor]] = []
        for turn in range(3 * num_ranks):
            if turn % num_ranks == me:
                stand_still()
            sent = torch.full((1, 64), 100.0 * turn + me, device=device)
            gathered = comms.compute.all_gather_rows(sent, [1] * num_ranks, tag="order")
            landed = [torch.zeros_like(sent) for _ in peers]
            recvs = [Transfer(peer, row) for peer, row in zip(peers, landed, strict=True)]
            comms.transfer.exchange([Transfer(peer, sent) for peer in peers], recvs, tag="order")
            memory.of(me)[: sent.nbytes].copy_(as_bytes(sent))
            memory.barrier()
            pulled = [memory.of(peer)[: sent.nbytes].clone().view(torch.float32) for peer in peers]
            memory.barrier()
            sent.fill_(-1.0)
            seen.append([gathered[:, 0], torch.cat(landed)[:, 0], torch.stack(pulled)[:, 0]])
        return [[part.tolist() for part in parts] for parts in seen]

    for rank, turns in enumerate(run_ranks(num_ranks, rank_main, device=device)):
        for turn, (gathered, landed, pulled) in enumerate(turns):
            of_all = [100.0 * turn + peer for peer in range(num_ranks)]
            of_peers = of_all[:rank] + of_all[rank + 1 :]
            assert gathered == of_all, f"rank {rank}, turn {turn}: gathered"
            assert landed == of_peers, f"rank {rank}, turn {turn}: exchanged"
            assert pulled == of_peers, f"rank {rank}, turn {turn}: pulled"
