"""`splash bench primitives`: one layer's weight gathers and KV collectives, with inference paused.

Each is what a switch does per layer (gather kernel, collective, scatter), next to the backend's best time
for the same bytes between the same ranks out of contiguous buffers, in the same run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from services.bench.clock import median, operation_ms
from services.bench.contiguous import OperationTraffic, contiguous_ways
from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import PrimitivesSettings, directions_of, layouts_of, sizes
from services.bench.sizing import LargestCell
from services.bench.spmd import RankHost
from splash_core.cost.switch import kv_primitive
from splash_core.engine.lanes import Move
from splash_core.engine.switching import ChunkMove, WeightMove
from splash_core.errors import Infeasible
from splash_core.layout.layout import RULES, Layout
from splash_core.switch.chunks import CHUNKS_UNDER_WAY
from splash_core.switch.manifest import Primitive, SwitchManifest

Direction = tuple[Layout, Layout]


def run(host: RankHost, settings: PrimitivesSettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    layouts = layouts_of(settings.layouts)
    batches, contexts = sizes(settings.batch, "--batch"), sizes(settings.context, "--context")
    demand = LargestCell(layouts=layouts, batch=max(batches), tokens=max(contexts), rows=0)
    recorder = RowRecorder("primitives", host, settings)
    recorder.say("making weights")
    bench = _Primitives(Rig(host, settings, layout=layouts[0], demand=demand), recorder, settings)
    directions = directions_of("", layouts)
    for direction in directions:
        bench.weights(direction)
    for batch in batches:
        for context in contexts:
            for direction in directions:
                bench.histories(direction, batch, context)
    return recorder.document().to_json()


class _Primitives:
    """The measurements of one rank."""

    def __init__(self, rig: Rig, recorder: RowRecorder, settings: PrimitivesSettings) -> None:
        self._rig = rig
        self._recorder = recorder
        self._settings = settings
        self._comm = rig.host.comms.transfer
        self._mover = rig.engine.mover

    def weights(self, direction: Direction) -> None:
        """The gather of one layer's projection shards, where the direction needs one."""
        rig = self._rig
        rig.group.restart(direction[0])
        manifest = rig.group.manifest(direction[1])
        cell = f"weights {direction[0]} → {direction[1]}"
        if manifest.weights is not Primitive.ALL_GATHER or not self._recorder.begin(cell):
            return
        peers = rig.settings.ranks - 1
        traffic = OperationTraffic.gather(rig.settings.ranks, manifest.weight_bytes_per_layer // peers)

        def gather(rep: int) -> None:
            self._run([WeightMove(rep % rig.spec.layers, self._mover, manifest.gathered)])

        measured = self._measure(gather, traffic)
        self._recorder.add(_row("weights all_gather", direction, None, None) | measured)

    def histories(self, direction: Direction, batch: int, context: int) -> None:
        """The move of one layer of all histories, where the direction needs one."""
        rig = self._rig
        rig.group.restart(direction[0])
        try:
            rig.group.place(batch, context)
            manifest = rig.group.manifest(direction[1])
        except Infeasible as refusal:
            if _moves_histories(direction):
                row = _row("kv", direction, batch, context)
                self._recorder.add(row | {"reason": str(refusal)})
            return
        cell = f"KV {direction[0]} → {direction[1]}, {batch} × {context}"
        if not manifest.layer_chunks or not self._recorder.begin(cell):
            return
        traffic = OperationTraffic.of_layer(manifest, rig.settings.ranks, rig.arena.layer_slice_bytes)
        measured = self._measure(self._mover_of(manifest), traffic)
        chunks = {"chunks": len(manifest.layer_chunks), "boundary_chunks": len(manifest.boundary_chunks)}
        stages = self._stages(manifest)
        row = _row(f"kv {manifest.kv}", direction, batch, context)
        self._recorder.add(row | measured | chunks | stages)

    def _stages(self, manifest: SwitchManifest) -> dict[str, float]:
        """Each half of all chunks of a layer alone, one chunk after the other: nothing overlaps."""
        mover, layers = self._mover, self._rig.spec.layers
        works = mover.prepare(manifest.layer_chunks)
        tracks = [index % CHUNKS_UNDER_WAY for index in range(len(works))]

        def read(rep: int) -> list[Tensor]:
            pairs = zip(works, tracks, strict=True)
            return [mover.read_pages(work, rep % layers, track=track) for work, track in pairs]

        with torch.inference_mode():
            # Chunks of one track share its staging: what is written need not be what was read.
            staged = read(0)

        def write(rep: int) -> None:
            for work, rows, track in zip(works, staged, tracks, strict=True):
                mover.write_pages(work, rep % layers, rows, track=track)

        return {"read_ms": self._median_ms(read), "write_ms": self._median_ms(write)}

    def _mover_of(self, manifest: SwitchManifest) -> Callable[[int], None]:
        works = self._mover.prepare(manifest.layer_chunks)

        def move(rep: int) -> None:
            # Another layer each time, so that no cache holds what is read.
            layer = rep % self._rig.spec.layers
            self._run([ChunkMove(work, self._mover, layer) for work in works])

        return move

    def _run(self, moves: Sequence[Move]) -> None:
        """One layer's moves, as a switch runs them: chunks on a GPU overlap."""
        lane = self._rig.engine.new_lane()
        lane.start((), [moves])
        lane.finish()

    def _measure(self, operation: Callable[[int], object], traffic: OperationTraffic) -> dict[str, Any]:
        """Times of the operation and of the best contiguous way, as fields of a row."""
        device, comms = self._rig.host.comms.device, self._rig.host.comms
        # The transfer communicator may be held to fewer thread blocks than the library would take.
        times = {
            f"{way} ({name})": self._median_ms(move)
            for name, comm in (("transfer", comms.transfer), ("compute", comms.compute))
            for way, move in contiguous_ways(comm, traffic, device).items()
        }
        best = min(times, key=lambda way: times[way])
        ms, size = self._median_ms(operation), max(traffic.received)
        limited_ms = min(ms for way, ms in times.items() if way.endswith("(transfer)"))
        return {
            "bytes_per_rank": size,
            "ms_p50": ms,
            "gb_s": size / ms / 1e6,
            "nccl_gb_s": size / times[best] / 1e6,
            "of_best": times[best] / ms,
            "best_way": best,
            "transfer_gb_s": size / limited_ms / 1e6,
            "of_limited": limited_ms / ms,
            "ways_ms": {way: float(f"{way_ms:.4g}") for way, way_ms in times.items()},
        }

    def _median_ms(self, operation: Callable[[int], object]) -> float:
        """The median over repetitions, of the slowest rank."""
        rig, settings = self._rig, self._settings
        with torch.inference_mode():
            mine = operation_ms(
                rig.clock, self._comm, operation, reps=settings.reps, warmup=settings.warmup + 1
            )
        return max(row[0] for row in rig.host.gather([median(mine)]))


def _row(primitive: str, direction: Direction, batch: int | None, context: int | None) -> dict[str, Any]:
    return {
        "primitive": primitive,
        "from": direction[0],
        "to": direction[1],
        "batch": batch,
        "context": context,
    }


def _moves_histories(direction: Direction) -> bool:
    """True where the planner would have to move pages, if it found room for them."""
    before, after = (RULES[layout] for layout in direction)
    return kv_primitive(before, after) in (Primitive.ALL_GATHER, Primitive.ALL_TO_ALL)
