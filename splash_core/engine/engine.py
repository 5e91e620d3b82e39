"""One rank: executes step plans and the manifests in them. It decides nothing.

Every rank of a group gets the same plans in the same order; a rank reports the tokens of the rows that
are at home on it. A step is asked of the device and finished later, so the next one can wait behind it.

Legend: N rows of the step, N_j at home here, M rows whose logits are wanted, V vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from splash_core.attention.batch import Batch, build_batch
from splash_core.attention.context import RankContext
from splash_core.attention.registry import create_attention
from splash_core.dist.comm import RankComms
from splash_core.engine.backends import backends_for
from splash_core.engine.decoder import hidden_rows
from splash_core.engine.drawn import DrawnTokens
from splash_core.engine.enqueued import EnqueuedStep
from splash_core.engine.graphs import DecodeGraphs, decodes
from splash_core.engine.in_turn import BarriersInTurn
from splash_core.engine.lanes import Lane, SwitchTimes, ThreadLane
from splash_core.engine.marks import NO_LAYER, Marker, StepPoint, no_marks
from splash_core.engine.mirror import SequenceMirrors
from splash_core.engine.movers import ExchangingMover, PullingMover, StateMover
from splash_core.engine.output import (
    StepOutput,
    drawn_tokens,
    draws,
    logits_to_draw,
    start_draw,
    start_scores,
)
from splash_core.engine.precopying import PrecopyExecution
from splash_core.engine.progress import StepProgress
from splash_core.engine.spans import HostSpan, Span, StreamSpan, fences_of
from splash_core.engine.stream_lane import CudaGpu, Gpu, StreamLane
from splash_core.engine.switching import SwitchExecution
from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, StepId
from splash_core.kv.arena import Arena
from splash_core.layout.layout import RULES, Layout, Matrix, Projection
from splash_core.layout.slots import ArenaMap
from splash_core.model.checkpoint import Checkpoint, Progress, Reader
from splash_core.model.random_weights import RandomReader
from splash_core.model.rope import RotaryTable, softmax_scale
from splash_core.model.weights import load_shard, planned_bytes, read_projection
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import chunk_bytes
from splash_core.units import LAYERS_AHEAD


class RankEngine:
    """Model shard, arena and mirrors of one rank. Use `load`, or `random` where any weights will do."""

    def __init__(
        self, ctx: RankContext, comms: RankComms, layout: Layout, graphs: DecodeGraphs | None = None
    ) -> None:
        self.ctx = ctx
        self.graphs = graphs
        """Recorded decode steps, used where they cover a step."""
        self.layers_ahead = LAYERS_AHEAD
        """Of a switch on a GPU: layers whose moves are enqueued before the layer that computes."""
        self.switch_times = SwitchTimes()
        """Of the latest call of `step`."""
        self._comms = comms
        self._layout = layout
        self._epoch = Epoch(0)
        self._mirrors = SequenceMirrors(ctx.num_ranks)
        self._drawn = DrawnTokens.none(ctx, StepId(0))
        self.mover: StateMover = ExchangingMover(ctx.arena, comms.transfer, ctx.kernels)
        """Moves this rank's state; benchmarks use it by itself."""
        self._gpu: Gpu | None = CudaGpu(ctx.device) if ctx.device.type == "cuda" else None
        self.progress = StepProgress(ctx.spec.num_mla_layers)
        self._fence = fences_of(self._gpu)
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
        """Random weights, made on the device. Arguments as those of `load`."""
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
        sharing, staged_bytes = self._comms.sharing, num_bytes
        if sharing is not None and (outbox := sharing.take(num_bytes // 2)) is not None:
            memory = outbox if self._gpu is None else BarriersInTurn(outbox, self._gpu)
            self.mover = PullingMover(self.ctx.arena, self._comms.transfer, self.ctx.kernels, memory)
            staged_bytes -= outbox.num_bytes
        self.mover.whole_page_bytes = chunk_bytes(num_bytes)
        if self._gpu is not None:
            for track, stream in enumerate(self._gpu.tracks):
                with self._gpu.on(stream):
                    self.mover.staging.reserve(track, staged_bytes // len(self._gpu.tracks))

    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan and wait for it; a failure leaves the rank unusable and is to end the group."""
        running = self.begin(plan)
        result = running.finish()
        self.switch_times = running.switch_times
        return result

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> EnqueuedStep:
        """Ask the device for one plan, perhaps behind one that it is still computing.

        On a GPU the host waits for nothing that the step before has not begun with; on a CPU the step is done
        when this returns.
        """
        span: Span = HostSpan() if self._gpu is None else StreamSpan(self._gpu)
        received = self.mover.bytes_received
        self.mark(StepPoint.BEGIN, NO_LAYER)
        self.progress.begin(plan.step)
        switch = self._take_switch(plan)
        if switch is not None and (self.graphs is None or not decodes(plan)):
            switch.start()  # before the host prepares the rows; else they say first how it moves
        self.mark(StepPoint.MOVED, NO_LAYER)
        ahead = self._precopy(plan)
        if ahead is not None and switch is None:
            ahead.start()
        self._mirrors.apply(plan)
        output = self._run_rows(plan, switch) if plan.sequences else StepOutput()
        if switch is not None:
            switch.complete()
        switched = received if switch is None else self.mover.bytes_received
        if ahead is not None:
            if switch is not None:
                ahead.start()  # after the manifest: it may read what that has moved
            ahead.finish()
        self.mark(StepPoint.END, NO_LAYER)
        self.progress.end(self._fence)
        span.end()
        return EnqueuedStep(
            plan=plan,
            rank=self.ctx.rank,
            span=span,
            output=output,
            switch=switch,
            switch_bytes=switched - received,
            precopy_bytes=self.mover.bytes_received - switched,
        )

    def _take_switch(self, plan: StepPlan) -> SwitchExecution | None:
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
        return SwitchExecution(
            manifest, plan.mode, mover=self.mover, arena=self.ctx.arena, lane=self.new_lane()
        )

    def new_lane(self) -> Lane:
        """Where the moves of one switch run."""
        if self._gpu is None:
            return ThreadLane()
        return StreamLane(self._gpu, layers_ahead=self.layers_ahead)

    def _precopy(self, plan: StepPlan) -> PrecopyExecution | None:
        if plan.precopy is None:
            return None
        return PrecopyExecution(plan.precopy, mover=self.mover, lane=self.new_lane())

    def _run_rows(self, plan: StepPlan, switch: SwitchExecution | None) -> StepOutput:
        batch = self._batch(plan)
        before, self._drawn = self._drawn, DrawnTokens.none(self.ctx, plan.step)
        before.check(plan)
        if self.graphs is not None and self.graphs.covers(plan.layout, batch):
            if switch is not None:
                switch.complete()
            return self._draw(plan, batch, self.graphs.logits(plan.layout, batch, before.fill), before)
        if switch is not None:
            switch.start()
        hidden_ND = self._hidden(plan, switch, batch, before)
        scores = start_scores(self.ctx, batch, self._mirrors, hidden_ND)
        if not draws(batch):
            return StepOutput(scores=scores)
        output = self._draw(plan, batch, logits_to_draw(self.ctx, batch, hidden_ND), before)
        return StepOutput(draw=output.draw, scores=scores)

    def _draw(self, plan: StepPlan, batch: Batch, logits_MV: Tensor, before: DrawnTokens) -> StepOutput:
        pending = start_draw(batch, self._mirrors, logits_MV, before=before)
        self._drawn = drawn_tokens(self.ctx, plan.step, batch, pending)
        return StepOutput(draw=pending)

    def _batch(self, plan: StepPlan) -> Batch:
        return build_batch(
            plan,
            self._mirrors.tables(),
            rank=self.ctx.rank,
            num_ranks=self.ctx.num_ranks,
            page_size=self.ctx.arena.map.page_size,
        )

    def _hidden(
        self, plan: StepPlan, switch: SwitchExecution | None, batch: Batch, before: DrawnTokens
    ) -> Tensor:
        attention = create_attention(plan.layout, self.ctx, batch)
        before.fill(batch, attention.tokens_N)

        def wait_layer(layer: int) -> None:
            self.mark(StepPoint.WANTED, layer)
            self.progress.reached(layer, self._fence)
            if switch is not None:
                switch.wait_layer(layer)
            self.mark(StepPoint.READY, layer)

        return hidden_rows(self.ctx, batch, attention, wait_layer)


def _load_projections(source: Reader, arena: Arena, kinds: Mapping[Matrix, Projection]) -> None:
    heads = arena.spec.heads // arena.shards
    every, own = range(arena.shards), (arena.rank % arena.shards,)
    for layer, matrix in arena.map.places:
        for owner in every if kinds[matrix] is Projection.REPLICATED else own:
            rows = read_projection(source, arena.spec, layer, matrix, owner * heads, (owner + 1) * heads)
            place = arena.shard(layer, matrix, owner)
            place.view(rows.shape).copy_(rows)
