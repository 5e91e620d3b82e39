"""The layouts by name: the only place that maps a name to its file."""

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.context_parallel import PassKeys, PassQueries
from splash_core.attention.data_parallel import DataParallel
from splash_core.attention.decoupled import DecoupledOwnership, DecoupledWithKvB
from splash_core.attention.tensor_parallel import TensorParallel
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import Layout

_CONTEXT_PARALLEL: dict[CpStorage, type[LayoutAttention]] = {
    CpStorage.PASS_Q: PassQueries,
    CpStorage.PASS_KV: PassKeys,
}
_OTHERS: dict[Layout, type[LayoutAttention]] = {
    Layout.TP: TensorParallel,
    Layout.DP: DataParallel,
    Layout.DOP: DecoupledOwnership,
    Layout.DOP_P: DecoupledWithKvB,
}


def attends(layout: Layout, ctx: RankContext, rows_per_rank: int) -> tuple[int, int]:
    """Query rows and heads with which a rank attends in a padded decode step of `layout`."""
    return _class_of(layout, CpStorage.PASS_Q).attends(ctx, rows_per_rank)


def create_attention(layout: Layout, ctx: RankContext, batch: Batch) -> LayoutAttention:
    """The attention of one step in `layout`."""
    return _class_of(layout, batch.cp_storage)(ctx, batch)


def _class_of(layout: Layout, cp_storage: CpStorage) -> type[LayoutAttention]:
    return _CONTEXT_PARALLEL[cp_storage] if layout is Layout.CP else _OTHERS[layout]
