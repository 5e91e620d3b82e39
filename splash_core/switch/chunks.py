"""Order page moves into chunks so that nothing is read after its slot was given away.

A chunk reads all its sources into staging before it writes, so a slot that is vacated by a chunk may be
filled by the same chunk or a later one. Invariant of the result: every need is met exactly once, no
chunk reads a slot that an earlier chunk wrote, and no rank receives or sends more than `capacity`
pages in a chunk.

Moves that wait for each other in a ring (full pools that trade pages) run in one chunk. Terms: a *bundle*
is all needs that read one slot; it is *freeing* when that slot becomes a target once it has been read.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.switch.manifest import Chunk, PageMove

SlotKey = tuple[RankId, SlotId]

CHUNKS_UNDER_WAY = 2
"""A chunk is gathered while the one before it is exchanged."""
STAGING_PARTS = 2 * CHUNKS_UNDER_WAY
"""Of each chunk under way, what is sent and what is received are staged."""


def chunk_bytes(staging_bytes: int) -> int:
    """What a rank may send, and may receive, in one chunk if staging may take so much memory in all."""
    return staging_bytes // STAGING_PARTS


class Need(NamedTuple):
    """A copy that `dst` must receive, and the holder that it is read from."""

    page: PageId
    src: RankId
    src_slot: SlotId
    dst: RankId

    @property
    def source(self) -> SlotKey:
        """The slot that is read."""
        return self.src, self.src_slot


class _Load:
    """Pages into and out of each rank in one chunk."""

    def __init__(self, capacity: int, num_ranks: int) -> None:
        self._capacity = capacity
        self._num_ranks = num_ranks
        self._received: Counter[RankId] = Counter()
        self._sent: Counter[RankId] = Counter()
        self._full_receivers = self._full_senders = 0

    def fits(self, needs: Sequence[Need]) -> bool:
        """True when the chunk can carry these needs too."""
        if len(needs) == 1:
            need = needs[0]
            return self._received[need.dst] < self._capacity and self._sent[need.src] < self._capacity
        received = Counter(need.dst for need in needs)
        sent = Counter(need.src for need in needs)
        return all(
            self._received[rank] + count <= self._capacity for rank, count in received.items()
        ) and all(self._sent[rank] + count <= self._capacity for rank, count in sent.items())

    def add(self, needs: Sequence[Need]) -> None:
        """Carry these needs."""
        for need in needs:
            self._received[need.dst] += 1
            self._sent[need.src] += 1
            self._full_receivers += self._received[need.dst] == self._capacity
            self._full_senders += self._sent[need.src] == self._capacity

    @property
    def full(self) -> bool:
        """True when no rank can receive, or none can send."""
        return self._num_ranks in (self._full_receivers, self._full_senders)


class ChunkScheduler:
    """Turns needs into chunks of moves. Use once.

    Args:
        needs: the copies to make, at most one per (page, dst).
        free: targets that are free from the start, per rank, best first.
        reusable: source slots that are targets once all needs that read them are met.
        capacity: pages that a rank may receive, and may send, in one chunk; at least 1.
        num_ranks: T.
    """

    def __init__(
        self,
        needs: Sequence[Need],
        *,
        free: Mapping[RankId, Sequence[SlotId]],
        reusable: frozenset[SlotKey],
        capacity: int,
        num_ranks: int,
    ) -> None:
        self._capacity = capacity
        self._num_ranks = num_ranks
        self._targets = {RankId(rank): deque(free.get(RankId(rank), ())) for rank in range(num_ranks)}
        self._credit = Counter({rank: len(slots) for rank, slots in self._targets.items()})
        self._pending: dict[SlotKey, list[Need]] = {}
        for need in sorted(needs):
            self._pending.setdefault(need.source, []).append(need)
        self._freeing = reusable & self._pending.keys()
        # Targets that freeing bundles will take: mere copies must leave so many.
        self._reserved = Counter(need.dst for key in self._freeing for need in self._pending[key])
        # Freeing bundles with one reader left, by direction: the edges along which rings are found.
        self._edges: dict[tuple[RankId, RankId], deque[SlotKey]] = {}
        for key in sorted(self._freeing):
            self._index(key)
        self._load = _Load(capacity, num_ranks)
        self._chosen: list[Need] = []
        self._vacated: list[SlotKey] = []

    def run(self) -> tuple[Chunk, ...]:
        """All chunks.

        It never gets stuck. Suppose no rank that still waits for pages has a free target. Each has as many
        slots yet to be vacated as pages to come, so in total the bundles to read are at least as many
        as the needs: each bundle has exactly one reader, and every waiting rank sends to a waiting
        rank, which closes a ring.

        Raises:
            InvariantBroken: on some rank, targets and reusable slots are fewer than its needs.
        """
        chunks: list[Chunk] = []
        while self._pending:
            self._fill()
            if not self._chosen:
                left = sum(map(len, self._pending.values()))
                raise InvariantBroken(f"{left} pages have no slot to go to; the planner counted wrongly")
            chunks.append(self._close())
        return tuple(chunks)

    def _fill(self) -> None:
        while not self._load.full and self._take_freeing():
            pass
        # A ring gives each of its ranks the slot that it takes, so it lets no further bundle go first.
        while not self._load.full and self._take_ring():
            pass
        self._take_copies()
        if not self._chosen:
            self._take_any()

    def _close(self) -> Chunk:
        for rank, slot in sorted(self._vacated):
            self._targets[rank].append(slot)
        chunk = Chunk.of(
            PageMove(need.page, need.src, need.src_slot, need.dst, self._targets[need.dst].popleft())
            for need in sorted(self._chosen)
        )
        self._load = _Load(self._capacity, self._num_ranks)
        self._chosen, self._vacated = [], []
        return chunk

    def _commit(self, needs: Sequence[Need]) -> None:
        self._load.add(needs)
        self._chosen.extend(needs)
        for need in needs:
            key = need.source
            bundle = self._pending[key]
            bundle.remove(need)
            self._credit[need.dst] -= 1
            if not bundle:
                del self._pending[key]
            if key not in self._freeing:
                continue
            self._reserved[need.dst] -= 1
            if bundle:
                self._index(key)
            else:
                self._credit[need.src] += 1
                self._vacated.append(key)

    def _index(self, key: SlotKey) -> None:
        if len(self._pending[key]) == 1:
            self._edges.setdefault((key[0], self._pending[key][0].dst), deque()).append(key)

    def _take_freeing(self) -> bool:
        """Freeing bundles whose targets have room now: each gives a slot back."""
        progress = False
        for key in [key for key in self._pending if key in self._freeing]:
            bundle = tuple(self._pending[key])
            if all(self._credit[need.dst] > 0 for need in bundle) and self._load.fits(bundle):
                self._commit(bundle)
                progress = True
                if self._load.full:
                    break
        return progress

    def _take_copies(self) -> None:
        """Needs whose source stays, as far as freeing bundles can do without the room."""
        for key in [key for key in self._pending if key not in self._freeing]:
            if self._load.full:
                return
            for need in tuple(self._pending[key]):
                if self._credit[need.dst] > self._reserved[need.dst] and self._load.fits((need,)):
                    self._commit((need,))

    def _take_ring(self) -> bool:
        """A ring of ranks, each passing one page on into the slot that the next one vacates."""
        successors: dict[RankId, list[RankId]] = {}
        for (src, dst), keys in sorted(self._edges.items()):
            while keys and keys[0] not in self._pending:
                keys.popleft()
            if keys and self._load.fits(self._pending[keys[0]]):
                successors.setdefault(src, []).append(dst)
        ring = _find_ring(successors)
        if ring is None:
            return False
        edges = zip(ring, [*ring[1:], ring[0]], strict=True)
        self._commit([self._pending[self._edges[edge][0]][0] for edge in edges])
        return True

    def _take_any(self) -> None:
        """One need that has room, though its bundle is too large for a chunk or others count on the room."""
        for bundle in self._pending.values():
            for need in bundle:
                if self._credit[need.dst] > 0:
                    self._commit((need,))
                    return


def _find_ring(successors: Mapping[RankId, Sequence[RankId]]) -> list[RankId] | None:
    """The first cycle of a directed graph, by depth-first search in rank order."""
    finished: set[RankId] = set()

    def visit(path: list[RankId]) -> list[RankId] | None:
        for rank in successors.get(path[-1], ()):
            if rank in path:
                return path[path.index(rank) :]
            if rank not in finished:
                ring = visit([*path, rank])
                if ring is not None:
                    return ring
        finished.add(path[-1])
        return None

    for start in sorted(successors):
        if start not in finished:
            ring = visit([start])
            if ring is not None:
                return ring
    return None
