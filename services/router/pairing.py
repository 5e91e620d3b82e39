"""May a prefill group hand KV to a decode group: their KV ABIs, compared field by field.

Invariant: no request is sent to a pair whose KV would be misread; a mismatch is reported as a readable diff.
"""

from collections.abc import Sequence

from services.router.records import GroupRecord
from splash_core.rpc.abi import abi_from_pb
from splash_core.transport.abi import abi_diff


def compatible(prefill: GroupRecord, decode: GroupRecord) -> bool:
    """True when both groups are described and agree on the KV ABI."""
    if prefill.description is None or decode.description is None:
        return False
    return not differences(prefill, decode)


def why_not_ready(prefills: Sequence[GroupRecord], decodes: Sequence[GroupRecord]) -> list[str]:
    """Why no pair of groups can serve, one line a cause; empty when one can."""
    usable_prefills = [record for record in prefills if record.trouble is None]
    usable_decodes = [record for record in decodes if record.trouble is None]
    if any(compatible(prefill, decode) for prefill in usable_prefills for decode in usable_decodes):
        return []
    causes = [told for record in (*prefills, *decodes) if (told := record.told)]
    for phase, records in (("prefill", prefills), ("decode", decodes)):
        if not records:
            causes.append(f"no {phase} group is configured")
    for prefill in usable_prefills:
        for decode in usable_decodes:
            diff = "; ".join(differences(prefill, decode))
            causes.append(f"{prefill.label} and {decode.label} differ in {diff}")
    return causes


def differences(prefill: GroupRecord, decode: GroupRecord) -> list[str]:
    """How the KV ABIs of two groups that are described differ, a field each."""
    assert prefill.description is not None, "only described groups are compared"
    assert decode.description is not None, "only described groups are compared"
    ours, theirs = (abi_from_pb(record.description.abi) for record in (prefill, decode) if record.description)
    return abi_diff(ours, theirs, names=("prefill has", "decode has"))
