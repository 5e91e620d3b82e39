"""What a leader tells its rank processes before the first frame: one JSON file for the whole group.

All ranks read the same file, so ranks cannot disagree on a size; only the rank's number is an argument.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from splash_core.layout.layout import Layout
from splash_core.transport.limits import LinkLimits
from splash_core.transport.options import TransportOptions

ELEM_BYTES = {"fp32": 4, "fp64": 8, "bf16": 2}
"""Bytes per number of weights and KV, by the name of the type."""


_LIMITS = LinkLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """The start-up parameters of a group's ranks."""

    group: str
    engine: str
    """`torch`, or `fake` (no weights)."""
    checkpoint: str
    """Folder of the weights."""
    model_name: str
    """The model's name in the KV ABI."""
    fingerprint: str
    """Its identity there, taken once by the leader."""
    num_ranks: int
    layout: Layout
    device: str
    """`cpu`, or `cuda`: each rank has a GPU of its host."""
    dtype: str
    """fp32, fp64 or bf16."""
    page_size: int
    arena_bytes: int
    staging_bytes: int
    transfer_max_ctas: int
    switch_layers_ahead: int
    link: str
    """ZeroMQ address of the leader."""
    rendezvous: str
    """Where the ranks meet for collectives: `file:///…` on one host, `tcp://host:port` over several."""
    log_dir: str
    log_format: str
    threads: int
    start_timeout_s: float
    """For all ranks to come together."""
    step_timeout_s: float
    """The longest wait for a peer inside one collective: no step may last longer."""
    graph_layouts: tuple[Layout, ...] = ()
    """Layouts whose decode steps are recorded at start."""
    graph_buckets: tuple[int, ...] = ()
    """Home rows per rank of those steps."""
    graph_bytes: int = 0
    """Device memory that they may take."""
    link_bytes_per_s: float = 0.0
    """Budget of the link to other groups; 0: none."""
    link_chunk_bytes: int = _LIMITS.chunk_bytes
    link_in_flight: int = _LIMITS.in_flight
    link_pause_s: float = _LIMITS.pause_s
    gpus: tuple[int, ...] = ()
    """Of the ranks, in their order; empty: rank i has GPU i."""
    dummy_seed: int | None = None
    """Random weights of this seed, instead of the checkpoint's."""
    fake_step_s: float = 0.0
    """How long a fake engine's step takes."""
    transport: TransportOptions = TransportOptions()
    """How they reach other groups' memory."""

    @property
    def link_limits(self) -> LinkLimits:
        """What a rank may ask of its link."""
        return self._limits(self.link_bytes_per_s or math.inf)

    @property
    def host_limits(self) -> LinkLimits:
        """What it may ask of its own host, which has no budget, and no queue to be kept short."""
        return self._limits(math.inf)

    def _limits(self, rate_bps: float) -> LinkLimits:
        return LinkLimits.within(
            rate_bps,
            chunk_bytes=self.link_chunk_bytes,
            in_flight=self.link_in_flight,
            pause_s=self.link_pause_s,
        )

    def write(self, path: Path) -> None:
        """Store as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> "RankConfig":
        """Load what `write` stored."""
        raw = json.loads(path.read_text())
        parsed = {
            "layout": Layout(raw["layout"]),
            "graph_layouts": tuple(map(Layout, raw["graph_layouts"])),
            "graph_buckets": tuple(raw["graph_buckets"]),
            "gpus": tuple(raw["gpus"]),
            "transport": TransportOptions(**raw["transport"]),
        }
        return cls(**raw | parsed)
