"""Decode groups as a prefill group knows them: who leads them, and whether they fence the silent."""

from collections.abc import Callable
from typing import Any, cast

from services.prefill.contact import Contact, Other
from splash_core.obs.lifeline import ProcessRef, host_identity
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import decode_pb2_grpc

ELSEWHERE = ProcessRef(host="another host", pid=1, start_ticks=1)
"""Of it nothing is ever proven."""
ENDED = ProcessRef(host=host_identity(), pid=2**30, start_ticks=1)
"""Pids end far below."""


def contact(
    decode: object,
    *,
    leader: ProcessRef = ELSEWHERE,
    sign_within_s: float = 0.0,
    clock: Callable[[], float] | None = None,
) -> Contact:
    """A contact with a decode group of incarnation `i`, of a prefill group of incarnation `w`."""
    other = Other(group="decode-0", incarnation="i", leader=leader, sign_within_s=sign_within_s)
    timing: dict[str, Any] = {} if clock is None else {"clock": clock}
    return Contact(other, cast("decode_pb2_grpc.DecodeStub", decode), VitalTasks(), writer="w", **timing)
