"""May a prefill group hand KV to a decode group: their KV ABIs, compared field by field.

Invariant: no request is sent to a pair whose KV would be misread; a mismatch is reported as a readable diff.
"""

from collections.abc import Sequence

from services.router.records import GroupRecord
from splash_core.pb import control_pb2
from splash_core.rpc.abi import abi_from_pb
from splash_core.transport.abi import abi_diff


def compatible(prefill: GroupRecord, decode: GroupRecord) -> bool:
    """True when both groups are described and agree on the KV ABI."""
    if prefill.description is None or decode.description is None:
        return False
    return not _diff(prefill.description, decode.description)


def why_not_ready(prefills: Sequence[GroupRecord], decodes: Sequence[GroupRecord]) -> list[str]:
    """Why no pair of groups can serve, one line a cause; empty when one can."""
    usable_prefills = [record for record in prefills if record.trouble is None]
    usable_decodes = [record for record in decodes if record.trouble is None]
    if any(compatible(prefill, decode) for prefill in usable_prefills for decode in usable_decodes):
        return []
    causes = [f"{record.label}: {record.trouble}" for record in (*prefills, *decodes) if record.trouble]
    for phase, records in (("prefill", prefills), ("decode", decodes)):
        if not records:
            causes.append(f"no {phase} group is configured")
    for prefill in usable_prefills:
        for decode in usable_decodes:
            if prefill.description is not None and decode.description is not None:
                diff = _diff(prefill.description, decode.description)
                causes.append(f"{prefill.label} and {decode.label} differ in {'; '.join(diff)}")
    return causes


def _diff(prefill: control_pb2.GroupDescription, decode: control_pb2.GroupDescription) -> list[str]:
    names = ("prefill has", "decode has")
    return abi_diff(abi_from_pb(prefill.abi), abi_from_pb(decode.abi), names=names)
