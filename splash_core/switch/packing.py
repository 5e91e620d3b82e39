"""Independent moves in chunks that each rank's staging holds: in order, or in equal parts.

Independent means that no move reads what another one writes. Invariant: no rank sends or receives more than
`capacity` pages in a chunk.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from splash_core.ids import RankId
from splash_core.layout.columns import joined, joined_pages
from splash_core.switch.manifest import Chunk, Flow, PageMove

_Side = tuple[str, RankId]


def pack(moves: Iterable[PageMove], *, capacity: int) -> tuple[Chunk, ...]:
    """Independent moves in chunks of at most `capacity` pages into and out of each rank.

    Each goes into the first chunk that has room, in one pass: a step waits for it.
    """
    chunks: list[list[PageMove]] = []
    received, sent = Counter[tuple[int, RankId]](), Counter[tuple[int, RankId]]()
    # Chunks before these are full for the rank.
    into, out_of = Counter[RankId](), Counter[RankId]()
    for move in sorted(moves):
        at = max(into[move.dst], out_of[move.src])
        while received[at, move.dst] >= capacity or sent[at, move.src] >= capacity:
            at += 1
        while len(chunks) <= at:
            chunks.append([])
        chunks[at].append(move)
        received[at, move.dst] += 1
        sent[at, move.src] += 1
        while received[into[move.dst], move.dst] >= capacity:
            into[move.dst] += 1
        while sent[out_of[move.src], move.src] >= capacity:
            out_of[move.src] += 1
    return tuple(map(Chunk.of, chunks))


def spread(flows: Sequence[Flow], *, capacity: int) -> tuple[Chunk, ...]:
    """As `pack`, but chunks are alike: each has the same share of every flow, and no page is looked at.

    Flows of the same pages to several ranks are cut at the same pages, so each chunk reads them once.

    Args:
        flows: one for each pair of ranks.
        capacity: pages; at least 1.
    """
    least = max((-(-pages // capacity) for pages in pages_by_side(flows).values()), default=0)
    for count in range(least, 2 * least):
        if all(pages <= capacity for pages in pages_by_side(flows, parts=count).values()):
            cuts = ([_part(flow, at, count) for flow in flows] for at in range(count))
            return tuple(Chunk(tuple(part for part in parts if len(part))) for parts in cuts)
    # So many flows for so small a capacity that equal shares of all of them are more than fits.
    return pack((move for flow in flows for move in flow), capacity=capacity)


def pages_by_side(flows: Iterable[Flow], *, parts: int = 1) -> Counter[_Side]:
    """Pages that each rank sends, and receives; of flows cut into so many parts, at most in one of them."""
    sides = Counter[_Side]()
    for flow in flows:
        pages = -(-len(flow) // parts)
        sides["sent", flow.src] += pages
        sides["received", flow.dst] += pages
    return sides


def merged(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """One flow for each pair of ranks, ascending."""
    by_pair: dict[tuple[RankId, RankId], list[Flow]] = {}
    for flow in flows:
        by_pair.setdefault((flow.src, flow.dst), []).append(flow)
    return tuple(
        Flow(
            src,
            dst,
            joined_pages(flow.pages for flow in parts),
            joined(flow.src_slots for flow in parts),
            joined(flow.dst_slots for flow in parts),
        )
        for (src, dst), parts in sorted(by_pair.items())
    )


def _part(flow: Flow, at: int, count: int) -> Flow:
    return flow.cut(len(flow) * at // count, len(flow) * (at + 1) // count)
