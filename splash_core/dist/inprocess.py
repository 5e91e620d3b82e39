"""Ranks as threads of one process, so that large random tests run the engine's own code cheaply.

All compute on one device: on CPUs, or on one GPU, each on a stream of its own. Collectives there are enqueued, but
the threads meet in each, so that no CUDA graph can hold one.

Invariant: nothing that a rank receives aliases memory that another rank can write, and all ranks must
make the same calls in the same order: a mismatch is reported by name instead of hanging.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Comm, RankComms, Transfer
from splash_core.dist.order import CPU, Order, order_on, own_stream
from splash_core.dist.rows import as_bytes, check_counts, check_rows, offsets_of, sum_in_rank_order
from splash_core.errors import DeadlineExceeded, GroupFailed, InvariantBroken
from splash_core.ids import RankId

R = TypeVar("R")

_JOIN_AFTER_ABORT_S = 5.0


class _GroupAborted(GroupFailed):
    """A rank was interrupted because another one failed first."""


@dataclass(frozen=True, slots=True)
class _Post:
    """What a rank shows the others in one call."""

    call: str
    payload: tuple[Tensor, ...] | tuple[tuple[Tensor, ...], ...]
    mark: Any
    """After which the payload can be read: see `Order`."""

    def tensors(self) -> Iterator[Tensor]:
        """All of the payload."""
        for part in self.payload:
            if isinstance(part, Tensor):
                yield part
            else:
                yield from part


class _Hub:
    """The meeting point of one communicator's ranks.

    Posts alternate between two boards: a rank can write a board again only after the meeting in between,
    to which everybody comes after reading it. So one meeting per call is enough.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.boards: tuple[list[_Post | None], list[_Post | None]] = ([None] * size, [None] * size)
        self._lock = threading.Lock()
        self._gates = [threading.Semaphore(0) for _ in range(size)]
        self._present: set[int] = set()
        self._left: set[int] = set()
        self._aborted: str | None = None

    def meet(self, rank: int, call: str) -> None:
        """Return once every rank has called; raise if one failed or does not come in time."""
        with self._lock:
            if self._aborted is not None:
                raise _GroupAborted(self._aborted)
            if self._left:
                raise GroupFailed(f"rank {rank} calls {call}, but ranks {sorted(self._left)} have returned")
            self._present.add(rank)
            last = len(self._present) == self.size
            if last:
                self._present.clear()
        if last:
            for other, gate in enumerate(self._gates):
                if other != rank:
                    gate.release()
            return
        arrived = self._gates[rank].acquire(timeout=self.timeout_s)
        if self._aborted is not None:
            raise _GroupAborted(self._aborted)
        if not arrived:
            missing = sorted(set(range(self.size)) - self._present)
            raise GroupFailed(f"rank {rank} waited {self.timeout_s:g} s in {call} for ranks {missing}")

    def leave(self, rank: int) -> None:
        """Rank `rank` makes no further call; whoever waits for it is told so."""
        with self._lock:
            self._left.add(rank)
            waiting = sorted(self._present)
        if waiting:
            self.abort(f"ranks {waiting} wait for rank {rank}, which has returned")

    def abort(self, reason: str) -> None:
        """Make every present and future `meet` raise."""
        with self._lock:
            if self._aborted is None:
                self._aborted = reason
        for gate in self._gates:
            gate.release()


class InProcessComm(Comm):
    """A `Comm` over threads; one object per rank, each used by one thread at a time.

    With one rank, results may be the argument itself.

    Args:
        hub: where the ranks meet.
        rank: this one.
        order: of the ranks' work.
    """

    def __init__(self, hub: _Hub, rank: RankId, order: Order) -> None:
        self._hub = hub
        self._rank = rank
        self._order = order
        self._calls = 0
        self._closed = False

    @property
    @override
    def rank(self) -> RankId:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._hub.size

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, counts[self._rank], tag=tag)
        if self.size == 1 or not any(counts):
            return x_NX
        posts = self._trade(f"all_gather_rows[{tag}] counts={list(counts)}", (x_NX.clone(),))
        return torch.cat([payload[0] for payload in posts])

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        check_counts(send_counts, self.size, tag=tag)
        check_counts(recv_counts, self.size, tag=tag)
        check_rows(x_NX, sum(send_counts), tag=tag)
        if self.size == 1:
            return x_NX
        posts = self._trade(f"all_to_all_rows[{tag}]", tuple(x_NX.clone().split(list(send_counts))))
        parts_NX = [payload[self._rank] for payload in posts]
        for source, part_NX in enumerate(parts_NX):
            check_rows(part_NX, recv_counts[source], tag=f"{tag} from rank {source}")
        return torch.cat(parts_NX)

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, sum(counts), tag=tag)
        if self.size == 1 or not any(counts):
            return x_NX
        posts = self._trade(f"reduce_scatter_rows[{tag}] counts={list(counts)}", (x_NX.clone(),))
        start = offsets_of(counts)[self._rank]
        own = slice(start, start + counts[self._rank])
        return sum_in_rank_order([payload[0][own] for payload in posts])

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        outboxes = tuple(
            tuple(send.tensor.clone() for send in sends if send.peer == peer) for peer in range(self.size)
        )
        posts = self._trade(f"exchange[{tag}]", outboxes)
        inboxes = [list(payload[self._rank]) for payload in posts]
        # A receive may land in an inference tensor although this thread is not in inference mode.
        with torch.inference_mode():
            for recv in recvs:
                if not inboxes[recv.peer]:
                    raise InvariantBroken(f"{tag}: rank {self._rank} expects more from rank {recv.peer}")
                sent = inboxes[recv.peer].pop(0)
                if sent.nbytes != recv.tensor.nbytes:
                    raise InvariantBroken(
                        f"{tag}: rank {recv.peer} sent {sent.nbytes} bytes, "
                        f"rank {self._rank} expects {recv.tensor.nbytes}"
                    )
                as_bytes(recv.tensor).copy_(as_bytes(sent))
        if any(inboxes):
            left = [peer for peer, inbox in enumerate(inboxes) if inbox]
            raise InvariantBroken(f"{tag}: rank {self._rank} did not receive all that ranks {left} sent")

    @override
    def barrier(self) -> None:
        self._trade("barrier", ())

    @override
    def close(self) -> None:
        self._closed = True

    def _trade(self, call: str, payload: tuple[Tensor, ...] | tuple[tuple[Tensor, ...], ...]) -> list:
        if self._closed:
            raise InvariantBroken(f"{call} after the communicator was closed")
        board = self._hub.boards[self._calls % 2]
        self._calls += 1
        board[self._rank] = _Post(call, payload, self._order.mark())
        if self.size > 1:
            self._hub.meet(self._rank, call)
        for other, post in enumerate(board):
            assert post is not None, "everybody posts before the meeting"
            if post.call != call:
                raise InvariantBroken(f"rank {self._rank} calls {call} while rank {other} calls {post.call}")
            if other != self._rank:
                self._order.after(post.mark, post.tensors())
        return [post.payload for post in board if post is not None]


def run_ranks(
    num_ranks: int, fn: Callable[[RankComms], R], *, device: torch.device = CPU, timeout_s: float = 120.0
) -> list[R]:
    """Run `fn` once per rank, each in its own thread, and return the results in rank order.

    Args:
        num_ranks: T.
        fn: the rank's program; gets its two communicators (usable from two threads at once).
        device: of all ranks; what they return there is complete.
        timeout_s: deadline for the whole run, and for any one wait inside it.

    Raises:
        Exception: the first failure of any rank, with a note that names the rank; the others are stopped
            at their next collective.
        DeadlineExceeded: the ranks did not finish in time.
    """
    hubs = (_Hub(num_ranks, timeout_s), _Hub(num_ranks, timeout_s))
    order = order_on(device)
    results: dict[int, R] = {}
    failures: list[tuple[int, BaseException]] = []

    def rank_main(rank: int) -> None:
        compute, transfer = (InProcessComm(hub, RankId(rank), order) for hub in hubs)
        try:
            with own_stream(device):
                results[rank] = fn(RankComms(compute=compute, transfer=transfer, device=device))
            for hub in hubs:
                hub.leave(rank)
        except BaseException as error:
            failures.append((rank, error))
            for hub in hubs:
                hub.abort(f"rank {rank} failed: {type(error).__name__}: {error}")

    if num_ranks == 1:
        rank_main(0)
    else:
        _run_threads(num_ranks, rank_main, hubs, timeout_s)
    if failures:
        rank, error = next(
            ((rank, error) for rank, error in failures if not isinstance(error, _GroupAborted)), failures[0]
        )
        error.add_note(f"raised on rank {rank} of {num_ranks}")
        raise error
    return [results[rank] for rank in range(num_ranks)]


def _run_threads(
    num_ranks: int, rank_main: Callable[[int], None], hubs: tuple[_Hub, _Hub], timeout_s: float
) -> None:
    threads = [
        threading.Thread(target=rank_main, args=(rank,), name=f"rank-{rank}", daemon=True)
        for rank in range(num_ranks)
    ]
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if not late:
        return
    for hub in hubs:
        hub.abort(f"the run's {timeout_s:g} s are up")
    for thread in threads:
        thread.join(_JOIN_AFTER_ABORT_S)
    raise DeadlineExceeded(f"ranks {late} of {num_ranks} did not finish within {timeout_s:g} s")
