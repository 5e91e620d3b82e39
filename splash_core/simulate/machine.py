"""What a simulated group can do: one interface for the product's scheduler and for the one that counts.

Both run the same batching, admission and owner assignment (`splash_core.scheduling`). The product's has
pages and runs one step at a time; the one that counts may run many steps of one shape at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from splash_core.cost.switch import SwitchBytes
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.simulate.workload import Request
from splash_core.switch.manifest import SwitchMode


class BatchRow(NamedTuple):
    """Rows of one request in a step."""

    key: int
    num_rows: int
    context: int
    owner: int
    samples: int


class Promised(NamedTuple):
    """Tokens of distinct history."""

    total: int
    """That the pools hold in the present layout."""
    projected: int
    """That everything admitted may come to hold."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What a switch that was to copy ahead still moves with its step, per layer on the fullest rank."""

    mode: SwitchMode
    """Overlapped where second copies did not fit."""
    moved: SwitchBytes


@dataclass(frozen=True, slots=True)
class StepRun:
    """A step that begins, and for how many steps more its shape may stay."""

    rows: tuple[BatchRow, ...]
    steps: int
    """At most so many steps, this one included, until a row ends or lacks a page."""
    moves: bool
    """Pages or weights move with this step."""
    relocated_pages: int = 0
    """Received by the fullest rank, for prompts that have landed elsewhere than where they are wanted."""
    ahead_bytes: int | None = None
    """Received by the fullest rank for a switch to come; None: this step copies nothing ahead."""
    rest: Rest | None = None
    """None where no such switch is made with this step."""

    @property
    def decodes(self) -> bool:
        """True when each request has one row, from which a token is drawn."""
        return all(row.num_rows == row.samples == 1 for row in self.rows)


@dataclass(slots=True)
class Ended:
    """What steps have brought about, as keys of requests."""

    prefilled: list[int] = field(default_factory=list[int])
    """The prompt is computed and the first token drawn."""
    finished: list[int] = field(default_factory=list[int])


class Machine(Protocol):
    """The scheduler of one group. Steps begin and end; all else may happen between and beside them."""

    @property
    def layout(self) -> Layout:
        """Of the step under way, or of the next one."""
        ...

    @property
    def live(self) -> int:
        """Requests that the scheduler knows."""
        ...

    @property
    def pages_held(self) -> int:
        """Page copies on all ranks; 0 after a drain."""
        ...

    def add(self, request: Request) -> None:
        """Queue a prompt to be computed here."""
        ...

    def reserve(self, request: Request) -> bool:
        """Promise pages to a prompt that is computed elsewhere; False: no room now."""
        ...

    def land(self, key: int) -> bool:
        """A promised prompt has arrived, with its first token; True when that was the last one too."""
        ...

    def release(self, key: int) -> None:
        """A computed prompt has left."""
        ...

    def snapshot(self, now: float, queued: Sequence[WaitingSequence]) -> Snapshot:
        """What a policy may see at a step boundary."""
        ...

    def switch(self, layout: Layout, mode: SwitchMode) -> str:
        """Change layout with the next step, or once most is copied ahead; why not now, or an empty text."""
        ...

    def leave_room(self, link: LinkView, pending_bytes: int) -> None:
        """The next step's copies ahead leave so many bytes of handoffs, of all ranks, their part of links."""
        ...

    def limit_chunk(self, rows: int | None) -> None:
        """Take at most so many rows while prompts are computed, from the next step on; None: the most."""
        ...

    def begin(self, most: int) -> StepRun | None:
        """The next step, or up to `most` of one shape; None when there is nothing to run."""
        ...

    def advance(self, steps: int) -> None:
        """So many more of the steps under way have ended; the one after them is under way."""
        ...

    def fitting(self, steps: int) -> int:
        """Of so many steps after the one under way, those whose pages are free."""
        ...

    def complete(self, steps: int) -> Ended:
        """The last `steps` steps have ended."""
        ...

    def promised(self) -> Promised:
        """What the router asks for."""
        ...

    def check(self) -> None:
        """Prove its invariants; raises `InvariantBroken`."""
        ...
