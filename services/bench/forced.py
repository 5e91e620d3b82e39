"""Steps whose tokens are given: logits of every row instead of drawn tokens.

Runs plans over the engine's weights, arena and recorded steps, beside the engine, which keeps switches and
nothing else. Invariant: all plans of a rig's group pass through here, so its mirrors are the only ones.

Legend: B rows of the step, in the order of the plan's sequences, V vocabulary.
"""

import torch
from torch import Tensor

from services.bench.rig import Rig
from splash_core.attention.batch import Batch, build_batch
from splash_core.attention.registry import create_attention
from splash_core.engine.decoder import hidden_rows, home_logits
from splash_core.engine.mirror import SequenceMirrors
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan
from splash_core.switch.manifest import SwitchMode


class ForcedSteps:
    """See the module.

    Args:
        rig: the rank; nobody else may run its group's steps.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._mirrors = SequenceMirrors(rig.settings.ranks)

    def go(self, layout: Layout) -> None:
        """Switch; no request may be in place."""
        if self._rig.group.layout is not layout:
            plan = self._rig.group.switch(layout, SwitchMode.BLOCKING, {})
            self._mirrors.apply(plan)
            self._rig.run(plan)

    @torch.inference_mode()
    def cache(self, plan: StepPlan) -> None:
        """Compute a plan's rows for what they leave in the cache."""
        self._hidden(plan.layout, self._batch(plan))

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """`[B, V]` on every rank: of a plan with one row a sequence; replayed where it is recorded."""
        batch, graphs = self._batch(plan), self._rig.engine.graphs
        if graphs is not None and graphs.covers(plan.layout, batch):
            mine_MV = graphs.logits(plan.layout, batch, _known)
        else:
            hidden_ND = self._hidden(plan.layout, batch)
            mine_MV = home_logits(self._rig.engine.ctx, hidden_ND, batch.counts)
        comm = self._rig.host.comms.compute
        gathered_BV = comm.all_gather_rows(mine_MV.contiguous(), batch.counts, tag="bench.logits")
        ordered_BV = torch.empty_like(gathered_BV)
        ordered_BV[torch.from_numpy(batch.sequence_N).to(gathered_BV.device)] = gathered_BV
        return ordered_BV

    def _batch(self, plan: StepPlan) -> Batch:
        self._mirrors.apply(plan)
        settings, rank = self._rig.settings, self._rig.host.rank
        return build_batch(
            plan,
            self._mirrors.tables(),
            rank=rank,
            num_ranks=settings.ranks,
            page_size=settings.page_size,
        )

    def _hidden(self, layout: Layout, batch: Batch) -> Tensor:
        ctx = self._rig.engine.ctx
        return hidden_rows(ctx, batch, create_attention(layout, ctx, batch), _in_place)


def _in_place(layer: int) -> None:
    """Nothing moves beside these steps."""


def _known(batch: Batch, tokens_N: Tensor) -> None:
    """The host gives all tokens: none is to be filled in on the device."""
    del batch, tokens_N
