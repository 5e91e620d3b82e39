"""Executing a precopy batch on one rank, beside the rows of its step.

Why it may run beside them, in any order: it reads pages that are full, which no row changes; it writes slots
that no page table shows, and weights of other heads, which no layout reads while its projections are sharded.
"""

from splash_core.engine.lanes import Lane, Move
from splash_core.engine.movers import StateMover
from splash_core.engine.staging import ChunkWork
from splash_core.engine.switching import ChunkMove, WeightMove
from splash_core.switch.precopy import PrecopyBatch


class PrecopyExecution:
    """One batch on its way; the transfer communicator is its alone meanwhile.

    Args:
        batch: what to copy, the same on all ranks.
        mover: this rank's mover.
        lane: a fresh one, where the copies run.
    """

    def __init__(self, batch: PrecopyBatch, *, mover: StateMover, lane: Lane) -> None:
        self._batch = batch
        self._mover = mover
        self._lane = lane
        self._works: list[ChunkWork] = []
        """Kept as long as this object: see `StateMover.prepare`."""

    def start(self) -> None:
        """Begin; the step's manifest, if it has one, must have been executed."""
        batch, mover = self._batch, self._mover
        self._works = mover.prepare(batch.chunks)
        moves: list[Move] = [
            *(WeightMove(layer, mover, batch.gathered) for layer in batch.weight_layers),
            *(ChunkMove(work, mover, None) for work in self._works),
        ]
        self._lane.start(moves, ())

    def finish(self) -> None:
        """Let what is computed next see all copies on this rank.

        Raises:
            Exception: whatever a transfer failed with; the group is then to end.
        """
        self._lane.finish()
