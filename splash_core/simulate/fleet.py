"""A deployment to simulate: groups of one size, what they hold, and how requests come to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from splash_core.cost.model import CostModel
from splash_core.dispatch.admission import GroupLimits, QueueLimits
from splash_core.errors import ConfigError, Infeasible
from splash_core.ids import GroupId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.buckets import decode_buckets
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import Role
from splash_core.switch.chunks import chunk_bytes
from splash_core.units import STAGING_BYTES

MOST_RANKS = 100_000
"""Each has a pool, and each group a scheduler, in this process's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Groups of T ranks each: prefill and decode groups, or combined ones."""

    model: CostModel
    """Of each group; its profile is the clock."""
    capacities: Mapping[Layout, Capacity]
    """Of the layouts that a group can run."""
    infeasible: Mapping[Layout, str] = field(default_factory=dict[Layout, str])
    """Why it cannot run each other one."""
    groups: Mapping[Role, int] = field(default_factory=lambda: {Role.PREFILL: 1, Role.DECODE: 1})
    chunk_tokens: int = 2048
    max_running: int = 256
    precopy_bytes_per_step: int = STAGING_BYTES
    """What a rank receives in an ordinary step while a switch copies ahead."""
    records_steps: bool = False
    """Whether decode groups replay decode steps from recordings; else all steps are launched."""
    handoff_bps: float | None = None
    """Bytes per second that a rank pushes into another group; None: as fast as inside a group."""
    host_cores: int | None = None
    """Cores that the ranks of all groups share; None: each rank has its own, or a device."""
    expected_output: int = 512
    """Output that the router expects of a request which may generate more, tokens."""
    kv_overcommit: float = 2.0
    """Multiple of a pool that the router may project."""
    queue: QueueLimits | None = None
    """What may wait for its first token before requests are refused; None: anything."""
    arena: ArenaMap | None = None
    """Slots of a rank; only the product's scheduler needs them."""

    def __post_init__(self) -> None:
        if not self.capacities:
            reasons = "; ".join(self.infeasible.values())
            raise Infeasible(
                f"no layout fits: {reasons}", nearest="more --ranks, or --dtype fp8 where there is"
            )
        if self.num_ranks > MOST_RANKS:
            raise ConfigError(
                f"{sum(self.groups.values())} groups of {self.model.num_ranks} ranks are "
                f"{self.num_ranks}; "
                f"at most {MOST_RANKS:,} are simulated: give fewer groups, or fewer --ranks"
            )
        served = {role for role, count in self.groups.items() if count > 0}
        if served not in ({Role.COMBINED}, {Role.PREFILL, Role.DECODE}):
            raise ConfigError(
                f"groups {dict(self.groups)}: give prefill and decode groups, or combined ones only"
            )

    @property
    def combined(self) -> bool:
        """True when groups prefill and decode."""
        return self.groups.get(Role.COMBINED, 0) > 0

    @property
    def names(self) -> Mapping[str, Role]:
        """What its groups are called, and do."""
        return {f"{role}-{index}": role for role, count in self.groups.items() for index in range(count)}

    @property
    def num_ranks(self) -> int:
        """Of all groups."""
        return self.model.num_ranks * sum(self.groups.values())

    @property
    def longest_request(self) -> int:
        """Most tokens of a request, prompt and output, in whatever layout its groups may run."""
        longest = min(capacity.longest_request for capacity in self.capacities.values())
        return min(longest, self.model.spec.max_positions)

    @property
    def limits(self) -> GroupLimits:
        """Of each group, as the router knows them."""
        return GroupLimits(max_model_len=self.longest_request, max_request_tokens=self.longest_request)

    def config(self, role: Role, name: str) -> SchedulerConfig:
        """Settings of a group's scheduler."""
        return SchedulerConfig(
            role=role,
            group=GroupId(name),
            layouts=tuple(self.capacities),
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            precopy_bytes_per_step=self.precopy_bytes_per_step,
            staging_bytes=chunk_bytes(STAGING_BYTES),
            recorded_rows=self._recorded_rows(role),
        )

    def _recorded_rows(self, role: Role) -> int:
        """Most home rows of a rank in a decode step that a group replays; 0: it launches all steps."""
        if role is Role.PREFILL or not self.records_steps:
            return 0
        return decode_buckets(self.max_running, self.model.num_ranks)[-1]
