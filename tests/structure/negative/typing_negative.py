"""Must NOT type-check: each marked line passes one identifier or unit as another."""

from splash_core.ids import RankId, SlotId
from splash_core.units import Bytes, Tokens


def takes_bytes(size: Bytes) -> Bytes:
    """Wants bytes."""
    return size


def takes_slot(slot: SlotId) -> SlotId:
    """Wants a slot."""
    return slot


takes_bytes(Bytes(1))
takes_slot(SlotId(1))
takes_bytes(Tokens(1))  # rejected
takes_slot(RankId(1))  # rejected
takes_slot(1)  # rejected
