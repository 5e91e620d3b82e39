"""One rank's part of a chunk as rows of staging memory, and that memory.

Invariant: of a chunk, what is sent, what stays on the rank and what arrives lie in this order in one buffer,
so that a chunk costs one gather, one exchange and one scatter.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from splash_core.ids import RankId
from splash_core.layout.columns import Column, column, joined
from splash_core.switch.chunks import CHUNKS_UNDER_WAY
from splash_core.switch.manifest import Chunk, Flow

Span = tuple[int, int]
"""First row, and the row after the last."""

_ALIGNED = 2
"""Indices of 8 bytes: kernels want memory that begins at a multiple of 16."""


def lay_out(flows: Iterable[Flow]) -> tuple[Column, dict[RankId, Span]]:
    """Rows to gather so that what each peer gets lies side by side.

    Peers that get the same pages share rows (a gather to all ranks sends a page T-1 times but reads it once),
    also where one peer's pages are a stretch of another's.

    Args:
        flows: of one rank, one for each peer; equal stretches are found by their first pages.

    Returns:
        The slots of the rows, and where each peer's rows lie.
    """
    rows = column()
    spans: dict[RankId, Span] = {}
    for flow in sorted(flows, key=lambda flow: (flow.pages[0], -len(flow), flow.dst)):
        slots = flow.src_slots
        start = _find(rows, slots[0])
        shared = len(rows) - start
        if rows[start : start + len(slots)] != slots[:shared]:
            start, shared = len(rows), 0
        rows += slots[shared:]
        spans[flow.dst] = start, start + len(slots)
    return rows, spans


class ChunkWork:
    """One rank's part of a chunk, used for every layer; see `prepare`.

    Staging holds rows `[to be sent | kept on this rank | received]`: the first two are gathered from
    `read_slots`, the last two are scattered to `write_slots`. No page is looked at by itself.

    Args:
        chunk: the moves of all ranks.
        rank: this rank.
    """

    read_slots: Tensor
    write_slots: Tensor
    received_slots: Tensor
    """The last of `write_slots`, for a rank that scatters what it keeps by itself."""

    def __init__(self, chunk: Chunk, rank: RankId) -> None:
        self._chunk = chunk
        self._rank = rank
        kept = [flow for flow in chunk.flows if flow.src == flow.dst == rank]
        incoming = [flow for flow in chunk.flows if flow.dst == rank and flow.crosses]
        sent, self.sends = lay_out(_sent_by(chunk, rank))
        self.num_sent, self.num_read = len(sent), len(sent) + sum(map(len, kept))
        self.num_kept = self.num_read - self.num_sent
        self.recvs: dict[RankId, Span] = {}
        self.num_rows = self.num_read
        for flow in incoming:
            self.recvs[flow.src] = self.num_rows, self.num_rows + len(flow)
            self.num_rows += len(flow)
        self.reads = joined([sent, *(flow.src_slots for flow in kept)])
        """`read_slots`, on the host."""
        self.writes = joined(flow.dst_slots for flow in (*kept, *incoming))
        """`write_slots`, on the host."""
        self.apart = self.writes[self.num_kept :] if self.num_kept % _ALIGNED else column()
        """`received_slots` once more, where they would not begin as kernels want them to."""

    @cached_property
    def found_at(self) -> dict[RankId, Span]:
        """Where this rank's rows lie among those that a peer sends, for a rank that takes them from there."""
        return {peer: lay_out(_sent_by(self._chunk, peer))[1][self._rank] for peer in self.recvs}


def prepare(chunks: Sequence[Chunk], *, rank: RankId, device: torch.device) -> list[ChunkWork]:
    """A rank's parts of chunks; their indices come to the device as one copy.

    On a GPU it is enqueued on the current stream, and the host does not wait for it.

    Args:
        chunks: of all ranks.
        rank: this rank.
        device: where the arena lives.
    """
    works = [ChunkWork(chunk, rank) for chunk in chunks]
    columns = [slots for work in works for slots in (work.reads, work.writes, work.apart)]
    placed = iter(_uploaded(columns, device))
    for work in works:
        work.read_slots, work.write_slots, apart = next(placed), next(placed), next(placed)
        work.received_slots = apart if work.num_kept % _ALIGNED else work.write_slots[work.num_kept :]
    return works


class Staging:
    """Memory that rows pass through, one buffer for each chunk under way, kept between switches.

    Why kept: a send or receive may run on a stream of the communicator's own. Memory freed behind it comes
    back to the allocator only when the GPU has passed it, so a host that runs ahead would take ever more.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tracks = [torch.empty(0, dtype=torch.uint8, device=device) for _ in range(CHUNKS_UNDER_WAY)]

    def reserve(self, track: int, num_bytes: int) -> Tensor:
        """`num_bytes` of a track's buffer, which grows if need be; call on the track's stream."""
        if self._tracks[track].numel() < num_bytes:
            self._tracks[track] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._tracks[track][:num_bytes]

    def rows(self, track: int, num_rows: int, pages: Tensor) -> Tensor:
        """`[num_rows, …]`: room for so many of `pages`."""
        size = num_rows * pages.shape[1:].numel() * pages.element_size()
        return self.reserve(track, size).view(pages.dtype).view(num_rows, *pages.shape[1:])


def _sent_by(chunk: Chunk, rank: RankId) -> list[Flow]:
    return [flow for flow in chunk.flows if flow.src == rank and flow.crosses]


def _find(rows: Column, slot: int) -> int:
    """The first row of a slot, or the number of rows."""
    try:
        return rows.index(slot)
    except ValueError:
        return len(rows)


def _uploaded(columns: Sequence[Column], device: torch.device) -> list[Tensor]:
    """Each column as int64 on the device, out of one copy; the host does not wait for it."""
    whole, starts = column(), list[int]()
    for slots in columns:
        # Kernels are compiled again for indices that begin anywhere else.
        whole.extend([0] * (-len(whole) % _ALIGNED))
        starts.append(len(whole))
        whole += slots
    if not whole:
        return [torch.empty(0, dtype=torch.long, device=device) for _ in columns]
    on_gpu = device.type == "cuda"
    indices = torch.empty(len(whole), dtype=torch.long, pin_memory=on_gpu)
    indices.copy_(torch.frombuffer(whole, dtype=torch.int32))
    indices = indices.to(device, non_blocking=on_gpu)
    return [indices[at : at + len(slots)] for at, slots in zip(starts, columns, strict=True)]
