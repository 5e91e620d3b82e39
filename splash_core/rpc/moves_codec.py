"""Page moves on the wire: a flow's columns as they lie in memory, so that no page costs anything by itself.

Invariant: what comes back equals what went in, whatever the byte order of either host.
"""

import sys
from collections.abc import Iterable

from splash_core.ids import RankId
from splash_core.layout.columns import Column, column, page_column
from splash_core.layout.layout import Matrix
from splash_core.pb import rank_pb2
from splash_core.switch.manifest import Chunk, Flow
from splash_core.switch.precopy import PrecopyBatch

_SWAPPED = sys.byteorder == "big"
"""Columns are little-endian on the wire."""


def column_to_pb(entries: Column) -> bytes:
    """A column for the wire."""
    if _SWAPPED:
        entries = entries[:]
        entries.byteswap()
    return entries.tobytes()


def column_from_pb(packed: bytes) -> Column:
    """A column of slots from the wire."""
    return _unpacked(column(), packed)


def chunks_to_pb(chunks: Iterable[Chunk]) -> list[rank_pb2.Chunk]:
    """Chunks for the wire."""
    return [rank_pb2.Chunk(flows=map(_flow_to_pb, chunk.flows)) for chunk in chunks]


def chunks_from_pb(messages: Iterable[rank_pb2.Chunk]) -> tuple[Chunk, ...]:
    """Chunks from the wire."""
    return tuple(Chunk(tuple(map(_flow_from_pb, message.flows))) for message in messages)


def precopy_to_pb(value: PrecopyBatch) -> rank_pb2.PrecopyBatch:
    """What is copied ahead, for the wire."""
    chunks = chunks_to_pb(value.chunks)
    return rank_pb2.PrecopyBatch(weight_layers=value.weight_layers, gathered=value.gathered, chunks=chunks)


def precopy_from_pb(message: rank_pb2.PrecopyBatch) -> PrecopyBatch:
    """What is copied ahead, from the wire."""
    return PrecopyBatch(
        weight_layers=tuple(message.weight_layers),
        gathered=tuple(Matrix(name) for name in message.gathered),
        chunks=chunks_from_pb(message.chunks),
    )


def _unpacked(entries: Column, packed: bytes) -> Column:
    entries.frombytes(packed)
    if _SWAPPED:
        entries.byteswap()
    return entries


def _flow_to_pb(flow: Flow) -> rank_pb2.Flow:
    return rank_pb2.Flow(
        src=flow.src,
        dst=flow.dst,
        pages=column_to_pb(flow.pages),
        src_slots=column_to_pb(flow.src_slots),
        dst_slots=column_to_pb(flow.dst_slots),
    )


def _flow_from_pb(message: rank_pb2.Flow) -> Flow:
    return Flow(
        src=RankId(message.src),
        dst=RankId(message.dst),
        pages=_unpacked(page_column(), message.pages),
        src_slots=column_from_pb(message.src_slots),
        dst_slots=column_from_pb(message.dst_slots),
    )
