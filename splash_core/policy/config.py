"""The operator's settings of the layout policy, as a group decides with them, from a policy document.

Invariant: a `PolicyConfig` that exists is valid; a wrong value is an error that names the key.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.document import PolicyDocument, Section, parse_document
from splash_core.policy.keys import KEYS
from splash_core.policy.snapshot import Phase

DEFAULT_HORIZON_STEPS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """One group's policy; `KEYS` says what each field means."""

    allowed: tuple[Layout, ...] = tuple(Layout)
    """Layouts that the policy may choose; a manual set or a pin may choose others."""
    margin: float = 0.05
    """By how much (relative) another layout must lead before a switch is considered."""
    dwell_s: float = 10.0
    """Least time between two switches of the policy, in seconds."""
    interval_s: float = 0.25
    """Least time between two decisions, in seconds; the leader asks no more often."""
    confirm: int = 2
    """Consecutive decisions that must agree on the layout to switch to."""
    horizon_steps: int = DEFAULT_HORIZON_STEPS
    """At most so many future steps are counted as gain, and what grows in them must fit."""
    exposed_ms_per_minute: float = 2000.0
    """Budget of predicted exposed switch time, in milliseconds per minute."""
    itl_bound_ms: float | None = None
    """Decode steps should not take longer; layouts that do are chosen only if all do."""
    ttft_bound_ms: float | None = None
    """A prompt that comes now and fits a chunk should have its first token by then: chunks are chosen so, and
    layouts that cannot are chosen only if none can."""
    hold_s: float = 60.0
    """For how long a manual set holds the policy off, in seconds."""
    max_age_s: float = 10.0
    """Inputs older than this mean HOLD, in seconds."""
    shadow: bool = False
    """Decide and record, but never switch."""

    def __post_init__(self) -> None:
        for item in fields(self):
            KEYS[item.name].check(getattr(self, item.name), where=item.name)

    @property
    def preferences(self) -> tuple[object, ...]:
        """What decides which layout leads: a streak of decisions under other ones says nothing."""
        return (self.allowed, self.margin, self.horizon_steps, self.itl_bound_ms, self.ttft_bound_ms)

    @property
    def itl_bound_s(self) -> float | None:
        """`itl_bound_ms` in seconds."""
        return None if self.itl_bound_ms is None else self.itl_bound_ms / 1e3

    @property
    def ttft_bound_s(self) -> float | None:
        """`ttft_bound_ms` in seconds."""
        return None if self.ttft_bound_ms is None else self.ttft_bound_ms / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """All that holds for one group at one instant."""

    enabled: bool = True
    """False: no decisions, layouts change by hand only."""
    pin: Layout | None = None
    """Where the operator holds the group; a pin by hand goes before it."""
    config: PolicyConfig = PolicyConfig()


def policy_at(
    document: PolicyDocument, *, phase: Phase, group: str, instant_s: float, trying: bool = False
) -> GroupPolicy:
    """What a document says of a group at an instant (seconds since the epoch).

    Args:
        document: of the deployment.
        phase: of the group.
        group: its name.
        instant_s: what calendars look at.
        trying: whether the document's canary is tried on its group now.
    """
    return _group_policy(document.values(phase=phase, group=group, instant_s=instant_s, trying=trying))


def _group_policy(values: Mapping[str, Any]) -> GroupPolicy:
    own = {item.name for item in fields(PolicyConfig)}
    config = PolicyConfig(**{name: value for name, value in values.items() if name in own})
    return GroupPolicy(enabled=values.get("enabled", True), pin=values.get("pin"), config=config)


def load_document(option: str) -> PolicyDocument:
    """The value of `--policy`: `off`, `auto` (defaults), or the path of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or a key is wrong.
    """
    if option == "off":
        return PolicyDocument(shared=Section(values={"enabled": False}))
    if option == "auto":
        return PolicyDocument()
    return parse_document(read_policy_file(option), source=option)


def read_policy_file(path: str, *, others: str = "off, auto") -> str:
    """The text of a policy file.

    Args:
        path: of a regular file: nobody may ever write into a pipe.
        others: what may be given in its place.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    file = Path(path)
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(f"policy file {path}: {cause}; give {others} or a TOML file") from error
