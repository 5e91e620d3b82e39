"""Fleets from what a deployment is: a model, a device or the KV room of a rank, and how it is divided."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from splash_core.cost.footprint import Deployment, memory_account
from splash_core.cost.model import CostModel
from splash_core.errors import ConfigError
from splash_core.layout.capacity import Capacity
from splash_core.layout.catalog import (
    FeasibleLayout,
    InfeasibleLayout,
    Verdict,
    catalog_of_arena,
    catalog_of_memory,
)
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout, Matrix
from splash_core.layout.slots import ArenaMap, matrix_elements, page_bytes
from splash_core.scheduling.roles import Role
from splash_core.simulate.fleet import Fleet
from splash_core.units import STAGING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a fleet is divided and driven."""

    groups: Mapping[Role, int] = field(default_factory=lambda: {Role.PREFILL: 1, Role.DECODE: 1})
    chunk_tokens: int = 2048
    max_running: int = 256
    precopy_bytes_per_step: int = STAGING_BYTES
    records_steps: bool = False
    handoff_bps: float | None = None
    host_cores: int | None = None
    layouts: tuple[Layout, ...] = STANDARD_LAYOUTS


def fleet_of_memory(model: CostModel, deployment: Deployment, shape: Shape) -> Fleet:
    """A fleet whose pools are what a device's memory leaves, as `splash plan` counts it.

    Raises:
        Infeasible: no layout fits.
    """
    account = memory_account(model.spec, deployment)
    verdicts = catalog_of_memory(
        account,
        shape.layouts,
        at=lambda ranks: memory_account(model.spec, replace(deployment, num_ranks=ranks)),
    )
    return _fleet(model, shape, verdicts, {layout: account.capacity(layout) for layout in shape.layouts})


def fleet_of_room(model: CostModel, *, kv_bytes: int, page_size: int, shape: Shape) -> Fleet:
    """A fleet whose ranks have so much KV room beside their projections, as services take `--kv-bytes`.

    Raises:
        ConfigError: an arena has one width for weights and KV, and the model's types do not.
        Infeasible: the room holds no page, or no layout fits.
    """
    precision, spec = model.precision, model.spec
    if precision.quantised_kv:
        raise ConfigError(
            f"--kv-bytes needs weights and KV of one width, not {precision.name}; use --fraction"
        )
    slot = page_bytes(spec, page_size=page_size, elem_bytes=precision.kv_bytes)

    def build(arena_bytes: int) -> ArenaMap:
        return ArenaMap.build(
            spec,
            num_ranks=model.num_ranks,
            page_size=page_size,
            elem_bytes=precision.kv_bytes,
            arena_bytes=arena_bytes,
        )

    weights = spec.num_mla_layers * sum(matrix_elements(spec, matrix) for matrix in Matrix)
    # Where the weights end depends on the gaps between them: at most one slot a matrix.
    trial = build(weights * precision.kv_bytes + (spec.num_mla_layers * len(Matrix) + 2) * slot)
    arena = build(trial.region_slots * slot + kv_bytes)
    verdicts = catalog_of_arena(spec, arena, shape.layouts)
    capacities = {layout: Capacity.of(arena, RULES[layout]) for layout in shape.layouts}
    return _fleet(model, shape, verdicts, capacities, arena=arena)


def _fleet(
    model: CostModel,
    shape: Shape,
    verdicts: Mapping[Layout, Verdict],
    capacities: Mapping[Layout, Capacity],
    **extra: Any,
) -> Fleet:
    fits: Collection[Layout] = [name for name, found in verdicts.items() if isinstance(found, FeasibleLayout)]
    return Fleet(
        model=model,
        capacities={layout: capacities[layout] for layout in fits},
        infeasible={
            layout: found.reason for layout, found in verdicts.items() if isinstance(found, InfeasibleLayout)
        },
        groups=shape.groups,
        chunk_tokens=shape.chunk_tokens,
        max_running=shape.max_running,
        precopy_bytes_per_step=shape.precopy_bytes_per_step,
        records_steps=shape.records_steps,
        handoff_bps=shape.handoff_bps,
        host_cores=shape.host_cores,
        **extra,
    )
