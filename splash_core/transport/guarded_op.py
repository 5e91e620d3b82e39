"""What the operations of all backends share: a state that ends once, guarded by a condition.

Invariant: a final state is never left, and everybody who waits hears of it.
"""

import threading
from abc import abstractmethod

from typing_extensions import override

from splash_core.transport.base import Op, OpState, OpStatus


class GuardedOp(Op):
    """An `Op` whose writer works under `changed`, which several operations may share.

    Args:
        attempt: what the caller named.
        empty: there is nothing to write: it is done at once.
        changed: held by whoever looks at or changes the operation.
    """

    def __init__(self, *, attempt: int, empty: bool, changed: threading.Condition) -> None:
        self._attempt = attempt
        self._changed = changed
        self._state = OpState.DONE if empty else OpState.QUEUED
        self._error = ""
        self._written = 0

    @property
    @override
    def attempt(self) -> int:
        return self._attempt

    @override
    def poll(self) -> OpStatus:
        with self._changed:
            return self._status()

    @override
    def wait(self, timeout_s: float) -> OpStatus:
        with self._changed:
            self._changed.wait_for(lambda: self._state.is_final, timeout_s)
            return self._status()

    @override
    def cancel(self) -> None:
        with self._changed:
            self._finish(OpState.CANCELLED)

    @property
    @abstractmethod
    @override
    def quiesced(self) -> bool: ...

    # What follows is called with the lock held.

    def _status(self) -> OpStatus:
        return OpStatus(state=self._state, written_bytes=self._written, error=self._error)

    def _expire(self) -> None:
        """The deadline has passed."""
        self._finish(OpState.FAILED, f"the deadline passed after {self._written} bytes")

    def _finish(self, state: OpState, error: str = "") -> None:
        if not self._state.is_final:
            self._state, self._error = state, error
            self._changed.notify_all()
