"""Plan a handoff: which prefill rank writes which page into which slot of the decode group.

The groups may differ in T and in layout, so this is the planner's difference between two groups: the
destination holds nothing of the request and wants its landing slots filled. Invariant: every landing
page is written exactly once, from a rank that holds its source; holders of a page share the work.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from splash_core.errors import InvalidRequest, InvariantBroken
from splash_core.ids import RankId, SlotId
from splash_core.layout.ownership import PageCopy


@dataclass(frozen=True, slots=True, order=True)
class LandingPage:
    """A reserved slot of the decode group for page `index` (0-based) of the request."""

    index: int
    rank: RankId
    slot: SlotId


@dataclass(frozen=True, slots=True, order=True)
class HandoffWrite:
    """One write: a page of the request, all layers, from a prefill rank to a decode rank."""

    index: int
    src: RankId
    src_slot: SlotId
    dst: RankId
    dst_slot: SlotId


def layer_ranges(num_layers: int, *, slice_bytes: int, least_bytes: int) -> tuple[int, ...]:
    """Ends of the layer ranges in which a page leaves: as many as keep a descriptor at `least_bytes` or more.

    Args:
        num_layers: of the model.
        slice_bytes: bytes of one layer of a page.
        least_bytes: small descriptors cost more than they save by leaving early.
    """
    layers = min(max(-(-least_bytes // slice_bytes), 1), num_layers)
    count = num_layers // layers
    return tuple(num_layers * (index + 1) // count for index in range(count))


def check_landing(
    landing: Sequence[LandingPage], *, num_pages: int, ranks: Collection[RankId], lease: str
) -> None:
    """Return if `landing` has exactly one place for every page of a prompt, each in a slot of its own.

    Args:
        landing: of one lease, as a request names it.
        num_pages: of the prompt.
        ranks: of the decode group.
        lease: its id.

    Raises:
        InvalidRequest: it has not; names the pages. Whoever sends the request must send a lease as granted.
    """
    indices = Counter(place.index for place in landing)
    slots = Counter((place.rank, place.slot) for place in landing)
    faults = {
        "have no place to land": set(range(num_pages)) - indices.keys(),
        "have more than one place to land": {index for index, count in indices.items() if count > 1},
        f"are not of the prompt, which has {num_pages}": indices.keys() - set(range(num_pages)),
        "share a slot": {place.index for place in landing if slots[place.rank, place.slot] > 1},
        f"land on none of the ranks {sorted(ranks)}": {
            place.index for place in landing if place.rank not in ranks
        },
    }
    told = [f"pages {sorted(pages)} {fault}" for fault, pages in faults.items() if pages]
    if told:
        raise InvalidRequest(
            f"lease {lease} does not fit the prompt: {'; '.join(told)}; the sender must pass on the lease "
            "that the decode group granted for this very prompt, unchanged",
            param="lease.pages",
        )


def plan_handoff(
    source: Sequence[tuple[PageCopy, ...]], landing: Sequence[LandingPage], *, first_index: int = 0
) -> tuple[HandoffWrite, ...]:
    """Writes that fill `landing`, in page order.

    Args:
        source: the prefill group's copies of pages `first_index …` of the request.
        landing: where the decode group wants them; pages beyond the source (room to grow) are left out.
        first_index: page index of `source[0]`, when pages are pushed as steps fill them.

    Raises:
        InvariantBroken: a source page has no holder or no landing, or a landing slot is named twice.
    """
    places = sorted(landing)
    if len({(place.rank, place.slot) for place in places}) != len(places):
        raise InvariantBroken("two pages are to land in one slot")
    missing = set(range(first_index, first_index + len(source))) - {place.index for place in places}
    if missing:
        raise InvariantBroken(f"pages {sorted(missing)} have no place to land")
    sent: Counter[RankId] = Counter()
    writes: list[HandoffWrite] = []
    for place in places:
        if not first_index <= place.index < first_index + len(source):
            continue
        holders = source[place.index - first_index]
        if not holders:
            raise InvariantBroken(f"page {place.index} has no holder")
        # Ties turn with the page index, so that page-by-page pushes are balanced too.
        turn = place.index % len(holders)
        holder = min((*holders[turn:], *holders[:turn]), key=lambda copy: sent[copy.rank])
        sent[holder.rank] += 1
        writes.append(HandoffWrite(place.index, holder.rank, holder.slot, place.rank, place.slot))
    return tuple(writes)
