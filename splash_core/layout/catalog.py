"""Which layouts a deployment can run, and what each one holds; or why not, with numbers.

Invariant: a layout is feasible when its projections divide as it wants and at least one page fits on a
rank. The answers follow from the rules in `layout.layout`; no layout is treated by name.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from splash_core.errors import ConfigError
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout, LayoutRule
from splash_core.layout.memory import MemoryAccount
from splash_core.layout.slots import ArenaMap, can_shard
from splash_core.spec.model import ModelSpec
from splash_core.units import GROUP_RANKS, Tokens, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FeasibleLayout:
    """A layout that can run."""

    layout: Layout
    distinct_tokens: Tokens
    """Tokens of distinct history that the whole group holds."""
    longest_context: Tokens
    """Tokens of the longest single request: by memory, and by the model's positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleLayout:
    """A layout that cannot run."""

    layout: Layout
    reason: str
    """With the numbers, and the nearest setting that would do."""


Verdict = FeasibleLayout | InfeasibleLayout
AccountAt = Callable[[int], MemoryAccount]
"""The account of the same deployment on another number of ranks."""


def named_layouts(text: str) -> tuple[Layout, ...]:
    """Layouts from names between commas, each once, in the order of `Layout`.

    Raises:
        ConfigError: a name is unknown, or there is none; lists the known ones.
    """
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    if not names or not names.issubset(Layout):
        raise ConfigError(f"layouts {text!r}: name some of {', '.join(Layout)}, with commas between them")
    return tuple(layout for layout in Layout if layout in names)


def catalog_of_arena(
    spec: ModelSpec, arena: ArenaMap, layouts: Collection[Layout] = STANDARD_LAYOUTS
) -> Mapping[Layout, Verdict]:
    """What the layouts can do in a given arena: the account of a running group."""
    verdicts: dict[Layout, Verdict] = {}
    for layout in layouts:
        rule = RULES[layout]
        verdicts[layout] = _indivisible(spec, rule, arena.num_ranks, lambda _: True) or _holds(
            spec, Capacity.of(arena, rule)
        )
    return MappingProxyType(verdicts)


def catalog_of_memory(
    account: MemoryAccount, layouts: Collection[Layout] = STANDARD_LAYOUTS, *, at: AccountAt
) -> Mapping[Layout, Verdict]:
    """What the layouts could do on given hardware: the account of `splash plan`.

    Args:
        account: of the deployment.
        layouts: to look at.
        at: tells which other numbers of ranks would do.
    """
    verdicts: dict[Layout, Verdict] = {}
    for layout in layouts:

        def fits(num_ranks: int, layout: Layout = layout) -> bool:
            return at(num_ranks).pool_pages(layout) >= 1

        verdicts[layout] = (
            _indivisible(account.spec, RULES[layout], account.num_ranks, fits)
            or _too_large(account, layout)
            or _holds(account.spec, account.capacity(layout))
        )
    return MappingProxyType(verdicts)


def _indivisible(
    spec: ModelSpec, rule: LayoutRule, num_ranks: int, fits: Callable[[int], bool]
) -> InfeasibleLayout | None:
    """Whether heads do not split, with the next smaller and larger numbers of ranks that would do."""
    if not rule.shards or can_shard(spec, num_ranks):
        return None
    # More ranks than heads never divide them.
    most = min(GROUP_RANKS, spec.heads)
    fewer, more = range(min(num_ranks - 1, most), 0, -1), range(num_ranks + 1, most + 1)
    nearest = [
        f"{ranks}"
        for side in (fewer, more)
        for ranks in _first(side, lambda n: can_shard(spec, n) and fits(n))
    ]
    others = f"{' or '.join(nearest)} ranks, or " if nearest else ""
    return InfeasibleLayout(
        layout=rule.layout,
        reason=f"{rule.layout} shards projections by heads, and {spec.heads} heads do not split over "
        f"{num_ranks} ranks; use {others}a layout with replicated projections",
    )


def _first(numbers: Iterable[int], suits: Callable[[int], bool]) -> list[int]:
    """The first one that suits, or none."""
    return list(islice(filter(suits, numbers), 1))


def _too_large(account: MemoryAccount, layout: Layout) -> InfeasibleLayout | None:
    if account.pool_pages(layout) >= 1:
        return None
    needed = account.footprint(layout, [1])[0]
    return InfeasibleLayout(
        layout=layout,
        reason=f"{layout} needs {format_bytes(needed)} per rank with one page of history "
        f"({format_bytes(account.weights_bytes(layout))} of projections), and {account.fraction:.0%} of "
        f"{format_bytes(account.hbm_bytes)} less {format_bytes(account.staging_bytes)} of staging is "
        f"{format_bytes(account.budget_bytes)}; use more ranks or a larger fraction",
    )


def _holds(spec: ModelSpec, capacity: Capacity) -> FeasibleLayout:
    return FeasibleLayout(
        layout=capacity.rule.layout,
        distinct_tokens=Tokens(capacity.distinct_tokens),
        longest_context=Tokens(min(capacity.longest_request, spec.max_positions)),
    )
