"""`splash plan`: what a model needs on given hardware, which layouts fit, and what switches move.

From dimensions and device figures alone: no GPU, no weights. Invariant: the switch table is derived by
the planner from who holds which page before and after, never listed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from splash_core.cost.footprint import Deployment, memory_account
from splash_core.cost.measured_on import described
from splash_core.cost.model import CostModel
from splash_core.cost.precision import PRECISIONS
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.cost.switch import SwitchBytes, switch_bytes
from splash_core.errors import Infeasible
from splash_core.layout.catalog import FeasibleLayout, InfeasibleLayout, Verdict, catalog_of_memory
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout
from splash_core.layout.memory import MemoryAccount
from splash_core.policy.regimes import Group, RegimeCell, regime_map
from splash_core.policy.snapshot import LayoutPool, Phase
from splash_core.policy.switch_table import SwitchKind, switch_table
from splash_core.spec.hardware import GpuSpec
from splash_core.spec.model import ModelSpec
from splash_core.units import format_bytes

REFERENCE_REQUESTS = 16
_REFERENCE_CONTEXTS = tuple(1 << exponent for exponent in range(17, 5, -1))
_MOST_RANKS = 256
_USUAL_PAGE, _USUAL_CHUNK = 64, 2048
_USUAL = {"page_size": _USUAL_PAGE, "chunk_tokens": _USUAL_CHUNK}
"""What fits if anything does: tokens of a page, rows of a step."""
_FULLY_SHARDED = next(layout for layout, rule in RULES.items() if not rule.fills)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSwitch:
    """One directed switch and what it moves at the reference load."""

    kind: SwitchKind
    moved: SwitchBytes
    layers: int

    @property
    def bytes_per_rank(self) -> int:
        """Received by the fullest rank, all layers."""
        return self.layers * (self.moved.weights + self.moved.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Everything that `splash plan` says."""

    spec: ModelSpec
    gpu: GpuSpec
    deployment: Deployment
    account: MemoryAccount
    verdicts: Mapping[Layout, Verdict]
    reference_context: int
    """Tokens of each of the reference load's requests."""
    switches: tuple[PlannedSwitch, ...]
    regimes: Mapping[Phase, tuple[RegimeCell, ...]]
    profile: HardwareProfile
    """What the regimes are predicted with."""
    recorded_rows: int = 0
    """As `build_plan` was told."""

    @property
    def projection_bytes_per_layer(self) -> int:
        """w_P, as stored."""
        return sum(self.account.projection_bytes.values())

    @property
    def gathered_bytes_per_layer(self) -> int:
        """What a rank receives per layer when projections become replicated: in flight at a time."""
        return self.projection_bytes_per_layer * (self.deployment.num_ranks - 1) // self.deployment.num_ranks

    @property
    def borrowed_slots(self) -> int:
        """Pages of a rank's pool that hold other ranks' weights while projections are replicated."""
        return self.account.borrowed_pages(_FULLY_SHARDED)

    @property
    def rounding_bytes(self) -> int:
        """Bytes of the weights region that a sharded layout can use neither for weights nor for pages."""
        return self.account.gap_bytes(_FULLY_SHARDED)

    def to_json(self) -> dict[str, Any]:
        """The report in the shape of `splash plan --json`."""
        return {
            "model": self.spec.name,
            "gpu": self.gpu.name,
            "ranks": self.deployment.num_ranks,
            "profile": described(self.profile, self.spec),
            "dtype": self.deployment.precision.name,
            "fraction": self.deployment.fraction,
            "page_size": self.deployment.page_size,
            "chunk_tokens": self.deployment.chunk_tokens,
            "kv_bytes_per_token": self.account.token_bytes,
            "max_positions": self.spec.max_positions,
            "recorded_rows": self.recorded_rows,
            "layouts": {layout.value: self._layout(layout) for layout in self.verdicts},
            "projection_bytes_per_layer": self.projection_bytes_per_layer,
            "gathered_bytes_per_layer": self.gathered_bytes_per_layer,
            "gathered_bytes": self.spec.num_mla_layers * self.gathered_bytes_per_layer,
            "borrowed_slots": self.borrowed_slots,
            "rounding_bytes": self.rounding_bytes,
            "reference_load": {"requests": REFERENCE_REQUESTS, "context": self.reference_context},
            "switches": [
                {
                    "from": switch.kind.layout_from.value,
                    "to": switch.kind.layout_to.value,
                    "weights": switch.kind.weights.value,
                    "kv": switch.kind.kv.value,
                    "bytes_per_rank": switch.bytes_per_rank,
                    "weight_bytes_per_layer": switch.moved.weights,
                    "kv_bytes_per_layer": switch.moved.kv,
                }
                for switch in self.switches
            ],
            "regimes": {
                phase.value: [
                    {
                        "batch": cell.batch,
                        "context": cell.context,
                        "best": None if cell.best is None else cell.best.value,
                        "tokens_per_s": {
                            name.value: round(rate, 1) for name, rate in cell.tokens_per_s.items()
                        },
                    }
                    for cell in cells
                ]
                for phase, cells in self.regimes.items()
            },
            "provenance": self.gpu.provenance,
        }

    def _layout(self, layout: Layout) -> dict[str, Any]:
        account, verdict = self.account, self.verdicts[layout]
        fits = isinstance(verdict, FeasibleLayout)
        return {
            "feasible": fits,
            "reason": verdict.reason if isinstance(verdict, InfeasibleLayout) else "",
            "weights_bytes": account.weights_bytes(layout),
            "other_bytes": account.other_bytes[layout],
            "gap_bytes": account.gap_bytes(layout),
            "pool_tokens_per_rank": account.pool_pages(layout) * account.page_size if fits else 0,
            "distinct_tokens": account.distinct_tokens(layout) if fits else 0,
            "longest_context": account.longest_context(layout) if fits else 0,
        }


def build_plan(
    spec: ModelSpec,
    gpu: GpuSpec,
    deployment: Deployment,
    layouts: Sequence[Layout] = STANDARD_LAYOUTS,
    profile: HardwareProfile | None = None,
    *,
    recorded_rows: int = 0,
) -> PlanReport:
    """The report for a model on `deployment.num_ranks` devices.

    Args:
        spec: the model.
        gpu: the devices.
        deployment: how they are used.
        layouts: those to compare.
        profile: what predicts step times; default: the devices' own figures.
        recorded_rows: most home rows of a rank in a decode step that is replayed; 0: all are launched.

    Raises:
        Infeasible: no layout fits; names the fewest ranks that do.
    """
    account = memory_account(spec, deployment)
    verdicts = catalog_of_memory(
        account, layouts, at=lambda ranks: memory_account(spec, replace(deployment, num_ranks=ranks))
    )
    feasible = [layout for layout, verdict in verdicts.items() if isinstance(verdict, FeasibleLayout)]
    if not feasible:
        raise _infeasible(gpu, deployment, account, layouts)
    precision, ranks = deployment.precision, deployment.num_ranks
    context = _reference_context(account, verdicts)
    theta = profile or analytical_profile(gpu, dtype=precision.name)
    model = CostModel(spec=spec, precision=precision, profile=theta, num_ranks=ranks)
    pools = {layout: _pool(account, layout, verdict) for layout, verdict in verdicts.items()}
    group = Group.of(deployment, pools, recorded_rows=recorded_rows)
    return PlanReport(
        spec=spec,
        gpu=gpu,
        deployment=deployment,
        account=account,
        verdicts=verdicts,
        reference_context=context,
        switches=_switches(spec, deployment, feasible, context),
        regimes={phase: regime_map(model, group, phase) for phase in Phase},
        profile=model.profile,
        recorded_rows=recorded_rows,
    )


def _switches(
    spec: ModelSpec, deployment: Deployment, layouts: Sequence[Layout], context: int
) -> tuple[PlannedSwitch, ...]:
    """Every switch between two feasible layouts, under the reference load spread over owners in turn."""
    ranks = deployment.num_ranks
    requests = [REFERENCE_REQUESTS // ranks + (rank < REFERENCE_REQUESTS % ranks) for rank in range(ranks)]
    owners = [count * context for count in requests]
    return tuple(
        PlannedSwitch(
            kind=kind,
            moved=switch_bytes(
                spec,
                deployment.precision,
                RULES[kind.layout_from],
                RULES[kind.layout_to],
                owner_tokens=owners,
            ),
            layers=spec.num_mla_layers,
        )
        for kind in switch_table(ranks, layouts)
    )


def _pool(account: MemoryAccount, layout: Layout, verdict: Verdict) -> LayoutPool:
    if isinstance(verdict, InfeasibleLayout):
        return LayoutPool(feasible=False, reason=verdict.reason)
    tokens = account.pool_pages(layout) * account.page_size
    return LayoutPool(feasible=True, total_tokens=tokens, free_tokens=tokens)


def _reference_context(account: MemoryAccount, verdicts: Mapping[Layout, Verdict]) -> int:
    """The longest power of two of which every feasible layout holds the reference requests."""
    room = min(
        account.distinct_tokens(layout)
        for layout, verdict in verdicts.items()
        if isinstance(verdict, FeasibleLayout)
    )
    per_request = room // REFERENCE_REQUESTS
    return next((context for context in _REFERENCE_CONTEXTS if context <= per_request), 1)


def _infeasible(
    gpu: GpuSpec, deployment: Deployment, account: MemoryAccount, layouts: Sequence[Layout]
) -> Infeasible:
    """With what would do: other numbers, other ranks, smaller pages or steps."""
    spec = account.spec
    message = "; ".join(_why_not(gpu, deployment, account, layouts))
    for sizes in ({}, {"page_size": _USUAL_PAGE}, {"chunk_tokens": _USUAL_CHUNK}, _USUAL):
        smaller = {name: size for name, size in sizes.items() if size < getattr(deployment, name)}
        usual = replace(deployment, **smaller)
        wider = [""] if _fits(spec, usual, layouts) else _wider(spec, gpu, usual, layouts)
        if wider:
            flags = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in smaller.items())
            return Infeasible(message, nearest=" or ".join(f"{flags} {more}".strip() for more in wider))
    return Infeasible(message)


def _why_not(
    gpu: GpuSpec, deployment: Deployment, account: MemoryAccount, layouts: Sequence[Layout]
) -> Iterator[str]:
    """Heads that do not split, then memory that does not suffice where they do."""
    spec = account.spec
    runs = [layout for layout in layouts if account.can_run(layout)]
    if split := ", ".join(layout for layout in layouts if layout not in runs):
        yield f"{spec.heads} heads of {spec.name} do not split over {deployment.num_ranks} ranks ({split})"
    if runs:
        least = min(account.footprint(layout, [1])[0] for layout in runs)
        yield (
            f"{spec.name} in {deployment.precision.name} needs at least {format_bytes(least)} on each of "
            f"{deployment.num_ranks} {gpu.name} ({', '.join(runs)}), and {deployment.fraction:.0%} of its "
            f"memory, less staging, is {format_bytes(account.budget_bytes)}"
        )


def _wider(spec: ModelSpec, gpu: GpuSpec, deployment: Deployment, layouts: Sequence[Layout]) -> list[str]:
    """Flags for narrower numbers, and for the next fewer and more ranks, with which a layout fits."""
    nearest: list[str] = []
    narrow = PRECISIONS["fp8"]
    if narrow.name in gpu.flops and _fits(spec, replace(deployment, precision=narrow), layouts):
        nearest.append(f"--dtype {narrow.name}")
    fewer = range(min(deployment.num_ranks, _MOST_RANKS) - 1, 0, -1)
    more = range(deployment.num_ranks + 1, _MOST_RANKS + 1)
    for counts in (fewer, more):
        for ranks in counts:
            if fits := _fits(spec, replace(deployment, num_ranks=ranks), layouts):
                nearest.append(f"--ranks {ranks} ({', '.join(fits)})")
                break
    return nearest


def _fits(spec: ModelSpec, deployment: Deployment, layouts: Sequence[Layout]) -> list[Layout]:
    account = memory_account(spec, deployment)
    return [layout for layout in layouts if account.can_run(layout) and account.pool_pages(layout) >= 1]
