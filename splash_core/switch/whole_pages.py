"""The moves of a switch as transfers of whole pages, for a step that needs all state before it begins.

A page has as many slices as the model has layers, so of few pages a transfer of whole ones saves launching a
transfer for every layer. Invariant: what is read is what would have been read layer by layer.
"""

from collections import Counter
from collections.abc import Sequence

from splash_core.ids import RankId
from splash_core.switch.evacuation import pack
from splash_core.switch.manifest import Chunk


def most_pages(chunks: Sequence[Chunk]) -> int:
    """Pages that some rank sends, or receives; of the rank and the side with most."""
    sides = Counter[tuple[str, RankId]]()
    for move in (move for chunk in chunks for move in chunk):
        sides["sent", move.src] += 1
        sides["received", move.dst] += 1
    return max(sides.values(), default=0)


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
    if pages > capacity * most:
        return None
    moves = [move for chunk in chunks for move in chunk]
    if {(move.src, move.src_slot) for move in moves} & {(move.dst, move.dst_slot) for move in moves}:
        return None
    packed = pack(moves, capacity=capacity)
    return packed if len(packed) <= most else None
