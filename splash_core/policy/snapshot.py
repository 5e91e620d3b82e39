"""What a layout policy may see: the batch, the queue and the pools of one group at one instant.

The scheduler builds a `Snapshot` at a step boundary; the simulator and `splash plan` build the same
value. Nothing here is live: time is a number that the caller injects, so `decide` is a pure function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from splash_core.cost.load import Rows
from splash_core.ids import RankId
from splash_core.layout.layout import Layout
from splash_core.units import STAGING_BYTES


class Phase(StrEnum):
    """Which half of serving a group does. A combined group reports the phase of its next step."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSequence:
    """One admitted sequence that holds, or is about to hold, KV pages."""

    context_tokens: int
    """Tokens whose KV is cached = position of the first row of its next step."""
    step_rows: int
    """Rows in the next step: 1 in decode, the chunk in prefill, 0 while it waits for its turn."""
    remaining_prompt: int = 0
    """Prompt tokens not computed yet, `step_rows` included; 0 in decode."""
    projected_output: int = 0
    """Tokens that it may still generate in this group (0 in a prefill group)."""
    owner: RankId = RankId(0)
    """Preferred owner; used by layouts that place a history on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSequence:
    """A request that is known but not admitted: it holds no pages."""

    prompt_tokens: int
    projected_output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPool:
    """What one layout offers on this group, from the catalog and the memory account."""

    feasible: bool
    reason: str = ""
    """Why not, when not feasible: shown to operators as it is."""
    total_tokens: int = 0
    """Pool tokens per rank in this layout (ordinary slots, and borrowed ones where it borrows)."""
    free_tokens: int = 0
    """Of those, tokens per rank free now on the fullest rank: the room for second copies of a precopy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAges:
    """Seconds since each input was observed; None means it is missing. Old or missing inputs mean HOLD."""

    running_s: float | None = 0.0
    waiting_s: float | None = 0.0
    pools_s: float | None = 0.0
    handoff_s: float | None = 0.0

    def by_name(self) -> dict[str, float | None]:
        """Input → age, for checks and records."""
        return {
            "running": self.running_s,
            "waiting": self.waiting_s,
            "pools": self.pools_s,
            "handoff": self.handoff_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One group's load and room, as of `time_s`."""

    time_s: float
    """Any monotonic clock; only differences are used."""
    group: str
    phase: Phase
    layout: Layout
    num_ranks: int
    page_size: int
    """Tokens per page."""
    chunk_tokens: int
    """Most prompt rows in one step of the group."""
    running: tuple[RunningSequence, ...] = ()
    waiting: tuple[WaitingSequence, ...] = ()
    pools: Mapping[Layout, LayoutPool] = field(default_factory=dict[Layout, LayoutPool])
    """Every layout the group knows, feasible or not."""
    owner_tokens: tuple[int, ...] = ()
    """Cached tokens per rank as placed now; informative (recorded), the prediction derives its own."""
    pending_handoff_bytes: int = 0
    """Bytes of pushes under way on the links that a switch would use."""
    precopy_bytes_per_step: int = 0
    """What a rank may receive in an ordinary step while a switch copies ahead; 0: the group cannot."""
    staging_bytes: int = STAGING_BYTES
    """Most that a rank receives in one transfer of whole pages."""
    recorded_rows: int = 0
    """Most home rows of a rank in a decode step that is replayed from a recording; 0: all are launched."""
    switch_pending: bool = False
    """True while a switch was requested and has not been executed."""
    measured_step_s: float | None = None
    """Median of recent step times in the present layout; recorded beside the prediction."""
    ages: InputAges = InputAges()

    def next_rows(self) -> list[Rows]:
        """The rows of the next step, of those that run now."""
        return [
            Rows(running.step_rows, running.context_tokens, running.owner)
            for running in self.running
            if running.step_rows
        ]

    @property
    def decodes(self) -> bool:
        """True when the next step has one row of each request in it, from which a token is drawn."""
        return all(
            running.step_rows == 1 and running.remaining_prompt <= 1
            for running in self.running
            if running.step_rows
        )

    def owned_tokens(self) -> list[int]:
        """Cached tokens of the requests that each rank is to own, `[T]`, whatever lies where now."""
        owners = [0] * self.num_ranks
        for running in self.running:
            owners[running.owner % self.num_ranks] += running.context_tokens
        return owners

    @property
    def is_idle(self) -> bool:
        """True when no row is left to compute: nothing waits, and prompts that run are all done."""
        if self.waiting:
            return False
        if self.phase is Phase.DECODE:
            return not self.running
        return not any(running.remaining_prompt for running in self.running)
