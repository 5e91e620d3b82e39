"""One rank: executes step plans and the manifests in them. It decides nothing.

Every rank of a group gets the same plans in the same order; a rank reports the tokens of the rows that
are at home on it.

Legend: N rows of the step, N_j at home here, M rows whose logits are wanted, V vocabulary.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from splash_core.attention.batch import Batch, build_batch
from splash_core.attention.context import RankContext
from splash_core.attention.registry import create_attention
from splash_core.dist.comm import RankComms
from splash_core.engine.backends import backends_for
from splash_core.engine.decoder import hidden_rows
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.lanes import Lane, SwitchTimes, ThreadLane
from splash_core.engine.marks import NO_LAYER, Marker, StepPoint, no_marks
from splash_core.engine.mirror import Mirrors
from splash_core.engine.movers import ExchangingMover, PullingMover, StateMover
from splash_core.engine.output import draw_from, draw_tokens, score_prompts
from splash_core.engine.precopying import PrecopyExecution
from splash_core.engine.progress import Fence, StepProgress
from splash_core.engine.stream_lane import CudaGpu, Gpu, StreamLane
from splash_core.engine.switching import SwitchExecution
from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch
from splash_core.kv.arena import Arena
from splash_core.layout.layout import RULES, Layout, Matrix, Projection
from splash_core.layout.slots import ArenaMap
from splash_core.model.checkpoint import Checkpoint, Progress, Reader
from splash_core.model.random_weights import RandomReader
from splash_core.model.rope import RotaryTable, softmax_scale
from splash_core.model.weights import load_shard, planned_bytes, read_projection
from splash_core.scheduling.step import PromptLogprobs, SampledToken, StepPlan, StepResult, StepTimes
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import chunk_bytes
from splash_core.units import LAYERS_AHEAD


class RankEngine:
    """Model shard, arena and mirrors of one rank. Use `load`, or `random` to measure."""

    def __init__(
        self, ctx: RankContext, comms: RankComms, layout: Layout, graphs: DecodeGraphs | None = None
    ) -> None:
        self.ctx = ctx
        self.graphs = graphs
        """Recorded decode steps, used where they cover a step."""
        self.layers_ahead = LAYERS_AHEAD
        """Of a switch on a GPU: layers whose moves are enqueued before the layer that computes."""
        self.switch_times = SwitchTimes()
        """Of the latest step."""
        self._comms = comms
        self._layout = layout
        self._epoch = Epoch(0)
        self._mirrors = Mirrors(ctx.num_ranks)
        self.mover: StateMover = ExchangingMover(ctx.arena, comms.transfer, ctx.kernels)
        """Moves this rank's state; benchmarks use it by itself."""
        self._gpu: Gpu | None = CudaGpu(ctx.device) if ctx.device.type == "cuda" else None
        self.progress = StepProgress(ctx.spec.num_mla_layers)
        """For whoever waits for the KV of a step, or of some of its layers."""
        self.mark: Marker = no_marks
        """Told where each step stands; set by benchmarks."""

    @classmethod
    def load(
        cls,
        checkpoint: Path,
        *,
        spec: ModelSpec,
        arena: ArenaMap,
        memory: Tensor,
        comms: RankComms,
        dtype: torch.dtype,
        layout: Layout,
        progress: Progress | None = None,
    ) -> "RankEngine":
        """Read this rank's weights; of projections that the layout replicates also the other ranks' shards.

        Args:
            checkpoint: a Hugging Face directory.
            spec: its model.
            arena: the slot map, equal on all ranks.
            memory: `[≥ arena.arena_bytes]` uint8, zero-filled.
            comms: this rank's communicators.
            dtype: of weights, activations and KV.
            layout: the layout to start in.
            progress: called with (bytes read, bytes to read).

        Raises:
            ConfigError: the checkpoint does not fit the spec; names what is missing or left over.
        """
        rank, num_ranks = comms.compute.rank, comms.compute.size
        views = Arena(arena, spec, rank=rank, memory=memory, dtype=dtype)
        with Checkpoint.open(checkpoint, spec=spec) as source:
            if progress is not None:
                kinds = RULES[layout].projections
                heads = {matrix: len(views.projection(0, matrix, kind)) for matrix, kind in kinds.items()}
                source.track(progress, planned_bytes(source, rank, num_ranks, heads=heads))
            return cls._read(source, views, comms, layout)

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        spec: ModelSpec,
        arena: ArenaMap,
        memory: Tensor,
        comms: RankComms,
        dtype: torch.dtype,
        layout: Layout,
    ) -> "RankEngine":
        """Random weights, made on the device; for benchmarks. Arguments as those of `load`."""
        views = Arena(arena, spec, rank=comms.compute.rank, memory=memory, dtype=dtype)
        source = RandomReader(spec, seed=seed, dtype=dtype, device=comms.device)
        return cls._read(source, views, comms, layout)

    @classmethod
    def _read(cls, source: Reader, views: Arena, comms: RankComms, layout: Layout) -> "RankEngine":
        spec, dtype, device = views.spec, views.dtype, comms.device
        _load_projections(source, views, RULES[layout].projections)
        backends = backends_for(device, dtype, spec)
        ctx = RankContext(
            comm=comms.compute,
            kernels=backends.kernels,
            attention=backends.attention,
            arena=views,
            spec=spec,
            weights=load_shard(source, spec, views.rank, comms.compute.size, dtype, device),
            rotary=RotaryTable(spec, dtype, device),
            scale=softmax_scale(spec),
            device=device,
            dtype=dtype,
        )
        return cls(ctx, comms, layout)

    def reserve_staging(self, num_bytes: int) -> None:
        """How much staging switches may take; on a GPU it is taken now, so that no step stops for it.

        Every rank calls it, before its first step: half of it is memory that all ranks read, where they can.
        """
        sharing = self._comms.sharing
        outbox = None if sharing is None else sharing.take(num_bytes // 2)
        if outbox is not None:
            self.mover = PullingMover(self.ctx.arena, self._comms.transfer, self.ctx.kernels, outbox)
        self.mover.whole_page_bytes = chunk_bytes(num_bytes)
        if outbox is not None:
            num_bytes -= outbox.num_bytes
        if self._gpu is not None:
            for track, stream in enumerate(self._gpu.tracks):
                with self._gpu.on(stream):
                    self.mover.staging.reserve(track, num_bytes // len(self._gpu.tracks))

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan; a failure leaves the rank unusable and is to end the group."""
        began = time.perf_counter()
        received = self.mover.bytes_received
        self.mark(StepPoint.BEGIN, NO_LAYER)
        self.progress.begin(plan.step)
        switch = self._begin_switch(plan)
        self.mark(StepPoint.MOVED, NO_LAYER)
        ahead = self._precopy(plan)
        if ahead is not None and switch is None:
            ahead.start()
        self._mirrors.apply(plan)
        tokens: tuple[SampledToken, ...] = ()
        scores: tuple[PromptLogprobs, ...] = ()
        if plan.sequences:
            tokens, scores = self._run_rows(plan, switch)
        if switch is not None:
            switch.finish()
        switched = received if switch is None else self.mover.bytes_received
        if ahead is not None:
            if switch is not None:
                ahead.start()  # after the manifest: it may read what that has moved
            ahead.finish()
        self.mark(StepPoint.END, NO_LAYER)
        self.progress.end(self._fence)
        if self._gpu is not None:
            self._gpu.compute().synchronize()  # what a rank reports has happened
        self.switch_times = SwitchTimes() if switch is None else switch.times()
        return StepResult(
            step=plan.step,
            rank=self.ctx.rank,
            tokens=tokens,
            prompt_logprobs=scores,
            switch_bytes_received=switched - received,
            precopy_bytes_received=self.mover.bytes_received - switched,
            times=StepTimes(total_s=time.perf_counter() - began, switch_wait_s=self.switch_times.wait_s),
        )

    @property
    def _fence(self) -> Callable[[], Fence] | None:
        """Marks what is enqueued so far on the stream that computes; None where nothing is enqueued."""
        gpu = self._gpu
        if gpu is None:
            return None

        def fence() -> Fence:
            event = gpu.event()
            event.record(gpu.compute())
            return event

        return fence

    def _begin_switch(self, plan: StepPlan) -> SwitchExecution | None:
        manifest = plan.manifest
        expected = self._epoch if manifest is None else manifest.epoch
        layout = self._layout if manifest is None else manifest.layout_to
        if plan.epoch != expected or plan.layout != layout:
            raise InvariantBroken(
                f"step {plan.step} runs {plan.layout} at epoch {plan.epoch}, "
                f"this rank is in {layout} at epoch {expected}"
            )
        self._epoch, self._layout = plan.epoch, plan.layout
        if manifest is None:
            return None
        switch = SwitchExecution(
            manifest, plan.mode, mover=self.mover, arena=self.ctx.arena, lane=self.new_lane()
        )
        switch.start()
        return switch

    def new_lane(self) -> Lane:
        """Where the moves of one switch run."""
        if self._gpu is None:
            return ThreadLane()
        return StreamLane(self._gpu, layers_ahead=self.layers_ahead)

    def _precopy(self, plan: StepPlan) -> PrecopyExecution | None:
        if plan.precopy is None:
            return None
        return PrecopyExecution(plan.precopy, mover=self.mover, lane=self.new_lane())

    def _run_rows(
        self, plan: StepPlan, switch: SwitchExecution | None
    ) -> tuple[tuple[SampledToken, ...], tuple[PromptLogprobs, ...]]:
        ctx = self.ctx
        batch: Batch = build_batch(
            plan,
            self._mirrors.tables(),
            rank=ctx.rank,
            num_ranks=ctx.num_ranks,
            page_size=ctx.arena.map.page_size,
        )
        in_place = switch is None or switch.in_place
        if self.graphs is not None and in_place and self.graphs.covers(plan.layout, batch):
            return draw_from(batch, self._mirrors, self.graphs.logits(plan.layout, batch)), ()
        attention = create_attention(plan.layout, ctx, batch)

        def wait_layer(layer: int) -> None:
            self.mark(StepPoint.WANTED, layer)
            self.progress.reached(layer, self._fence)
            if switch is not None:
                switch.wait_layer(layer)
            self.mark(StepPoint.READY, layer)

        hidden_ND = hidden_rows(ctx, batch, attention, wait_layer)
        return (
            draw_tokens(ctx, batch, self._mirrors, hidden_ND),
            score_prompts(ctx, batch, self._mirrors, hidden_ND),
        )


def _load_projections(source: Reader, arena: Arena, kinds: Mapping[Matrix, Projection]) -> None:
    heads = arena.spec.heads // arena.shards
    every, own = range(arena.shards), (arena.rank % arena.shards,)
    for layer, matrix in arena.map.places:
        for owner in every if kinds[matrix] is Projection.REPLICATED else own:
            rows = read_projection(source, arena.spec, layer, matrix, owner * heads, (owner + 1) * heads)
            place = arena.shard(layer, matrix, owner)
            place.view(rows.shape).copy_(rows)
