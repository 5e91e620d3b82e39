"""Names of groups: notes, policies and metrics know a group by its name, so no two may have the same.

Invariant: of groups that answer, the one that was called so first keeps the name; the others are refused.
"""

from collections.abc import Sequence
from dataclasses import replace

from services.router.records import GroupRecord


def named(record: GroupRecord, records: Sequence[GroupRecord], *, now_s: float) -> GroupRecord:
    """A record of a group that has just answered, with why it may not be called as it is, if it may not.

    A group that drains, has failed, cannot be reached or can never serve here keeps no other one from its
    name: that one may be the same group, moved to another address.
    """
    assert record.description is not None, "a group that answers describes itself"
    name = record.description.group
    others = [other for other in records if _has_name(other, name, record.address)]
    # Who cannot serve gives way to whoever has the name already.
    here = [other for other in others if other.serves(now_s=now_s) or not record.serves(now_s=now_s)]
    return replace(record, clash=_told(name, record.address, first=here[0].address)) if here else record


def renamed_by(record: GroupRecord, records: Sequence[GroupRecord]) -> list[GroupRecord]:
    """Records of groups that have lost their name to one that has answered, as they are from now on."""
    if record.description is None or record.clash is not None:
        return []
    name = record.description.group
    return [
        replace(other, clash=_told(name, other.address, first=record.address))
        for other in records
        if _has_name(other, name, record.address)
    ]


def _has_name(other: GroupRecord, name: str, address: str) -> bool:
    """Whether a group at another address is called `name`, and not refused for it."""
    description = other.description if other.address != address and other.clash is None else None
    return description is not None and description.group == name


def _told(name: str, address: str, *, first: str) -> str:
    return (
        f"the group at {address} is called {name!r}, as the one at {first} that was here before; start it "
        "with another --group, or, if both addresses are of one group, give the router one of them"
    )
