"""Executing a precopy batch on one rank, beside the rows of its step.

Why it may run beside them, in any order: it reads pages that are full, which no row changes; it writes slots
that no page table shows, and weights of other heads, which no layout reads while its projections are sharded.
"""

import threading

import torch

from splash_core.engine.switching import StateMover
from splash_core.kv.arena import Arena
from splash_core.switch.precopy import PrecopyBatch


class PrecopyExecution:
    """One batch on its way, on a thread of its own; the transfer communicator is its alone meanwhile.

    Args:
        batch: what to copy, the same on all ranks.
        mover: this rank's mover.
        arena: this rank's arena.
    """

    def __init__(self, batch: PrecopyBatch, *, mover: StateMover, arena: Arena) -> None:
        self._batch = batch
        self._mover = mover
        self._arena = arena
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="splash-precopy", daemon=True)

    def start(self) -> None:
        """Begin; the step's manifest, if it has one, must have been executed."""
        self._thread.start()

    def finish(self) -> int:
        """Return once all is in place on this rank; the bytes received from other ranks.

        Raises:
            Exception: whatever a transfer failed with; the group is then to end.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._mover.bytes_received

    def _run(self) -> None:
        try:
            with torch.inference_mode():  # thread-local: the step's own does not reach this thread
                for layer in self._batch.weight_layers:
                    self._mover.gather_weights(layer, self._batch.gathered)
                for chunk in self._batch.chunks:
                    self._mover.move_pages(self._mover.prepare(chunk), self._arena.pages_SLPC)
        except Exception as failure:  # handed to the step, which raises it
            self._failure = failure
