"""What communicators over a `torch.distributed` process group have in common."""

import torch.distributed as dist
from typing_extensions import override

from splash_core.dist.comm import Comm
from splash_core.ids import RankId


class ProcessGroupComm(Comm):
    """Knows its rank and size. The group itself belongs to whoever made it.

    Args:
        group: the ranks; never torch's default group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank = RankId(dist.get_rank(group))
        self._size = dist.get_world_size(group)

    @property
    @override
    def rank(self) -> RankId:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._size
