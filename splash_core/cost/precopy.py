"""What a switch costs that copies ahead: ordinary steps slowed down, then a switching step for the rest.

Equations are those of docs/model.md §5. Invariant: the share of a link that copies ahead get beside handoffs
is the one that the scheduler gives them.
"""

import math

from splash_core.cost.profile import HardwareProfile
from splash_core.cost.step_kind import StepKind
from splash_core.cost.switch import SwitchBytes, SwitchCost, switch_cost
from splash_core.switch.manifest import SwitchMode

LEAST_SHARE = 1 / 8
"""Of a link's rate, which copies ahead have also beside handoffs."""


def left_of_link(*, rate_bps: float, step_s: float, pending_bytes: int, most: int) -> int:
    """What handoffs leave of a rank's link during a step, at most `most` bytes.

    B = max(rate · step − pending, rate · step / 8): what is under way goes before what a switch copies ahead,
    which yet comes to an end.
    """
    if not rate_bps or not step_s or not pending_bytes:
        return most
    fits = rate_bps * step_s
    return min(most, int(max(fits - pending_bytes, fits * LEAST_SHARE)))


def copying_s(profile: HardwareProfile, size: float, *, ordinary_s: float) -> float:
    """By how much an ordinary step is longer that copies so many bytes ahead on the fullest rank.

    Args:
        profile: θ.
        size: bytes, all layers.
        ordinary_s: predicted time of the step without them.
    """
    copying = profile.collective_latency_s + size / profile.link_bps
    hidden = min(copying, ordinary_s)
    return copying - hidden + hidden * profile.interference


def rest_cost(
    profile: HardwareProfile,
    rest: SwitchBytes,
    *,
    layers: int,
    kind: StepKind,
    step_s: float,
    whole_bytes: int,
) -> SwitchCost:
    """Of the switching step: all layers of what is left in one transfer, before the step's rows.

    Where the step is launched and more is left than whole pages in one transfer, layers compute beside it.

    Args:
        profile: θ.
        rest: what the fullest rank still lacks, per layer.
        layers: layers that hold state.
        kind: of the switching step.
        step_s: its predicted time in the destination layout.
        whole_bytes: pages that a rank receives in one transfer.
    """
    at_once = not rest.weights and layers * rest.kv <= whole_bytes
    if not at_once and kind.mode is SwitchMode.OVERLAPPED:
        return switch_cost(profile, rest, layers=layers, step_s=step_s)
    whole = SwitchBytes(weights=layers * rest.weights, kv=layers * rest.kv)
    return switch_cost(profile, whole, layers=1, step_s=0.0, mode=SwitchMode.BLOCKING)


def precopy_cost(
    profile: HardwareProfile,
    moved: SwitchBytes,
    last: SwitchCost,
    *,
    layers: int,
    ordinary_s: float,
    bytes_per_step: int,
) -> SwitchCost:
    """Slow-down of the steps that copy ahead, and what the switching step exposes.

    Args:
        profile: θ.
        moved: all that the fullest rank lacks, per layer.
        last: of the switching step, which moves a part of that.
        layers: layers that hold state.
        ordinary_s: predicted time of a step in the present layout.
        bytes_per_step: what a step copies ahead, on the fullest rank.
    """
    ahead = layers * (moved.weights + moved.kv) - last.bytes_per_rank
    steps = math.ceil(ahead / max(bytes_per_step, 1)) if ahead > 0 else 0
    slower = steps * copying_s(profile, ahead / steps, ordinary_s=ordinary_s) if steps else 0.0
    return SwitchCost(
        bytes_per_rank=layers * (moved.weights + moved.kv),
        exposed_s=last.exposed_s,
        contention_s=last.contention_s + slower,
        slowed_s=last.slowed_s,
        ahead_steps=steps,
    )
