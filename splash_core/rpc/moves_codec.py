"""Page moves on the wire, as parallel arrays. Invariant: what comes back equals what went in."""

from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.layout import Matrix
from splash_core.pb import rank_pb2
from splash_core.switch.manifest import Chunk, PageMove
from splash_core.switch.precopy import PrecopyBatch


def chunk_to_pb(chunk: Chunk) -> rank_pb2.PageMoves:
    """A chunk for the wire."""
    return rank_pb2.PageMoves(
        page=[move.page for move in chunk],
        src=[move.src for move in chunk],
        src_slot=[move.src_slot for move in chunk],
        dst=[move.dst for move in chunk],
        dst_slot=[move.dst_slot for move in chunk],
    )


def chunk_from_pb(message: rank_pb2.PageMoves) -> Chunk:
    """A chunk from the wire."""
    columns = (message.page, message.src, message.src_slot, message.dst, message.dst_slot)
    return tuple(
        PageMove(PageId(page), RankId(src), SlotId(src_slot), RankId(dst), SlotId(dst_slot))
        for page, src, src_slot, dst, dst_slot in zip(*columns, strict=True)
    )


def precopy_to_pb(value: PrecopyBatch) -> rank_pb2.PrecopyBatch:
    """What is copied ahead, for the wire."""
    chunks = [chunk_to_pb(chunk) for chunk in value.chunks]
    return rank_pb2.PrecopyBatch(weight_layers=value.weight_layers, gathered=value.gathered, chunks=chunks)


def precopy_from_pb(message: rank_pb2.PrecopyBatch) -> PrecopyBatch:
    """What is copied ahead, from the wire."""
    return PrecopyBatch(
        weight_layers=tuple(message.weight_layers),
        gathered=tuple(Matrix(name) for name in message.gathered),
        chunks=tuple(chunk_from_pb(chunk) for chunk in message.chunks),
    )
