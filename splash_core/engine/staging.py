"""One rank's part of a chunk as rows of staging memory, and that memory.

Invariant: of a chunk, what is sent, what stays on the rank and what arrives lie in this order in one buffer,
so that a chunk costs one gather, one exchange and one scatter.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from splash_core.ids import PageId, RankId, SlotId
from splash_core.switch.chunks import CHUNKS_UNDER_WAY
from splash_core.switch.manifest import Chunk

Span = tuple[int, int]
"""First row, and the row after the last."""


def lay_out(wanted: Mapping[RankId, tuple[PageId, list[SlotId]]]) -> tuple[list[SlotId], dict[RankId, Span]]:
    """Rows to gather so that what each peer gets lies side by side.

    Peers that get the same pages share rows (a gather to all ranks sends a page T-1 times but reads it once),
    also where one peer's pages are a stretch of another's.

    Args:
        wanted: per peer its first page, by which equal stretches are found, and its slots in order.

    Returns:
        The slots of the rows, and where each peer's rows lie.
    """
    rows: list[SlotId] = []
    place: dict[SlotId, int] = {}
    spans: dict[RankId, Span] = {}
    for peer, (_, slots) in sorted(wanted.items(), key=lambda item: (item[1][0], -len(item[1][1]))):
        start = place.get(slots[0], len(rows))
        shared = len(rows) - start
        if rows[start : start + len(slots)] != slots[:shared]:
            start, shared = len(rows), 0
        for row, slot in enumerate(slots[shared:], start=len(rows)):
            rows.append(slot)
            place[slot] = row
        spans[peer] = start, start + len(slots)
    return rows, spans


class ChunkWork:
    """One rank's part of a chunk, made once and used for every layer.

    Staging holds rows `[to be sent | kept on this rank | received]`: the first two are gathered from
    `read_slots`, the last two are scattered to `write_slots`.

    Args:
        chunk: the moves of all ranks.
        rank: this rank.
        device: where the arena lives.
    """

    def __init__(self, chunk: Chunk, *, rank: RankId, device: torch.device) -> None:
        kept: list[SlotId] = []
        written: list[SlotId] = []
        outgoing: dict[RankId, tuple[PageId, list[SlotId]]] = {}
        incoming: dict[RankId, list[SlotId]] = {}
        for move in chunk:
            if move.src == rank:
                if move.dst == rank:
                    kept.append(move.src_slot)
                    written.append(move.dst_slot)
                else:
                    outgoing.setdefault(move.dst, (move.page, []))[1].append(move.src_slot)
            elif move.dst == rank:
                incoming.setdefault(move.src, []).append(move.dst_slot)
        sent, self.sends = lay_out(outgoing)
        self.num_sent, self.num_read = len(sent), len(sent) + len(kept)
        self.recvs: dict[RankId, Span] = {}
        self.num_rows = self.num_read
        for peer, slots in sorted(incoming.items()):
            self.recvs[peer] = self.num_rows, self.num_rows + len(slots)
            self.num_rows += len(slots)
            written += slots
        both = _indices([*sent, *kept, *written], device)
        self.read_slots, self.write_slots = both[: self.num_read], both[self.num_read :]


class PullWork(ChunkWork):
    """A rank's part where peers stage what they send and it takes what it wants from there.

    Args: as of `ChunkWork`.
    """

    def __init__(self, chunk: Chunk, *, rank: RankId, device: torch.device) -> None:
        super().__init__(chunk, rank=rank, device=device)
        outgoing: dict[RankId, dict[RankId, tuple[PageId, list[SlotId]]]] = {}
        for move in chunk:
            if move.src != move.dst and move.src in self.recvs:
                to = outgoing.setdefault(move.src, {})
                to.setdefault(move.dst, (move.page, []))[1].append(move.src_slot)
        self.found_at: dict[RankId, Span] = {peer: lay_out(sent)[1][rank] for peer, sent in outgoing.items()}
        """Where this rank's rows lie among those that a peer sends."""


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


def _indices(slots: Sequence[SlotId], device: torch.device) -> Tensor:
    """`[len(slots)]` int64 on the device; the host does not wait for the copy."""
    on_gpu = device.type == "cuda" and len(slots) > 0
    return torch.tensor(slots, dtype=torch.long, pin_memory=on_gpu).to(device, non_blocking=on_gpu)
