"""The moves of a switch as transfers of whole pages, for a step that needs all state before it begins.

A page has as many slices as the model has layers, so of few pages a transfer of whole ones saves launching a
transfer for every layer. Invariant: what is read is what would have been read layer by layer.
"""

from collections import defaultdict
from collections.abc import Sequence

from splash_core.ids import RankId
from splash_core.switch.manifest import Chunk, flows_of
from splash_core.switch.packing import merged, pages_by_side, spread


def most_pages(chunks: Sequence[Chunk]) -> int:
    """Pages that some rank sends, or receives; of the rank and the side with most."""
    return max(pages_by_side(flows_of(chunks)).values(), default=0)


def whole_page_chunks(chunks: Sequence[Chunk], *, capacity: int, most: int) -> tuple[Chunk, ...] | None:
    """The same moves, at most `capacity` pages into and out of each rank in one chunk.

    Args:
        chunks: of slices, so each may hold many more pages than one of whole ones.
        capacity: pages; at least 1.
        most: chunks that are worth it.

    Returns:
        Chunks to move in this order; None where they would be too many, or would have to keep to an order
        because a slot is handed on from page to page.
    """
    pages = most_pages(chunks)
    if pages <= capacity:
        return tuple(chunks)
    if pages > capacity * most or _hands_on(chunks):
        return None
    packed = spread(merged(flows_of(chunks)), capacity=capacity)
    return packed if len(packed) <= most else None


def _hands_on(chunks: Sequence[Chunk]) -> bool:
    """True where a slot that is read is written, too."""
    read, written = defaultdict[RankId, set[int]](set), defaultdict[RankId, set[int]](set)
    for flow in flows_of(chunks):
        read[flow.src].update(flow.src_slots)
        written[flow.dst].update(flow.dst_slots)
    return any(slots & written[rank] for rank, slots in read.items())
