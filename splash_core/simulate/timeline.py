"""A run over time, for plots: how many requests are in the system, and how many groups are in each layout."""

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from splash_core.layout.layout import Layout
from splash_core.simulate.ledger import Ledger


def in_system(ledger: Ledger) -> tuple[list[float], list[int]]:
    """Times, and requests that had come and not ended from each on."""
    changes = [(times.arrived_s, 1) for times in ledger.finished]
    changes += [(times.finished_s, -1) for times in ledger.finished]
    changes.sort()
    return [when for when, _ in changes], list(accumulate(change for _, change in changes))


def layout_shares(ledger: Ledger, role: str, end_s: float) -> tuple[list[float], Mapping[Layout, list[int]]]:
    """Times, and groups of a role in each layout from each on; layouts that none was in are left out.

    Args:
        ledger: of a run.
        role: of the groups.
        end_s: the last time.
    """
    counts = Counter(layout for group, layout in ledger.starts.items() if group.startswith(f"{role}-"))
    switches = [switch for switch in ledger.switches if switch.group.startswith(f"{role}-")]
    seen = [layout for layout in Layout if counts[layout] or any(s.layout_to is layout for s in switches)]
    times = [0.0]
    shares = {layout: [counts[layout]] for layout in seen}
    for switch in switches:
        counts[switch.layout_from] -= 1
        counts[switch.layout_to] += 1
        times.append(switch.time_s)
        for layout, row in shares.items():
            row.append(counts[layout])
    times.append(end_s)
    for row in shares.values():
        row.append(row[-1])
    return times, shares
