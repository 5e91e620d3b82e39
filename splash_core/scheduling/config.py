"""Settings of one group's scheduler: fixed for the life of the group."""

from dataclasses import dataclass

from splash_core.errors import ConfigError
from splash_core.ids import GroupId, Incarnation
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.roles import Role
from splash_core.units import STAGING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How a group schedules. Defaults suit one host."""

    role: Role
    group: GroupId = GroupId("group-0")
    incarnation: Incarnation = Incarnation("0")
    """One life of the group: keys its leases."""
    layouts: tuple[Layout, ...] = STANDARD_LAYOUTS
    """Layouts that the group may ever run, all of them feasible: together they bound a request's length."""
    chunk_tokens: int = 512
    """Most rows in a step while prompts are being computed; decode rows come first and count."""
    max_running: int = 64
    """Most sequences that hold pages at a time (leases included)."""
    max_model_len: int | None = None
    """Most tokens of one sequence, prompt and output; None: what the model and the pool allow."""
    staging_bytes: int = STAGING_BYTES
    """Most bytes that one chunk of a switch may stage on a rank."""
    precopy_bytes_per_step: int = STAGING_BYTES
    """About how much a rank receives in each ordinary step while a switch copies ahead; at least one unit: a
    page, or the missing weights of a layer."""
    recorded_rows: int = 0
    """Most home rows of a rank in a decode step that ranks have recorded and replay; 0: all are launched."""
    admission_overcommit: float = 1.0
    """Projected tokens admitted per token of pool: 1.0 never needs preemption while the layout stays."""

    def __post_init__(self) -> None:
        for name in ("chunk_tokens", "max_running", "staging_bytes", "precopy_bytes_per_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.recorded_rows < 0:
            raise ConfigError(f"recorded_rows must be at least 0, got {self.recorded_rows}")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"max_model_len must be at least 1, got {self.max_model_len}")
        if self.admission_overcommit < 1.0:
            raise ConfigError(f"admission_overcommit must be at least 1.0, got {self.admission_overcommit}")
        if not self.layouts:
            raise ConfigError("a group needs at least one layout that it may run")
