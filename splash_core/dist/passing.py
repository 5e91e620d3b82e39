"""A communicator around another one: what wrappers share, so that each states only what it adds."""

from collections.abc import Sequence

from typing_extensions import override

from splash_core.dist.comm import Comm, Transfer
from splash_core.ids import RankId


class PassingComm(Comm):
    """Passes on everything but row collectives, which a wrapper looks at, and `close`, which it decides on."""

    def __init__(self, inner: Comm) -> None:
        self._inner = inner

    @property
    @override
    def rank(self) -> RankId:
        return self._inner.rank

    @property
    @override
    def size(self) -> int:
        return self._inner.size

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        self._inner.exchange(sends, recvs, tag=tag)

    @override
    def barrier(self) -> None:
        self._inner.barrier()

    @override
    def settle(self) -> None:
        self._inner.settle()
