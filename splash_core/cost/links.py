"""What collectives cost: a latency and a bandwidth per kind, and per size where small ones go another way."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Collective(StrEnum):
    """Kinds of collectives on rows."""

    GATHER = "gather"
    EXCHANGE = "exchange"
    """All-to-all."""
    SCATTER = "scatter"
    """Partial sums to their homes."""


@dataclass(frozen=True, slots=True)
class CollectiveLoad:
    """Collectives of one kind, over all steps of a load."""

    kind: Collective
    count: float
    received_bytes: float
    """On the rank that receives most, by all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """One kind of collective up to a size."""

    latency_s: float
    """α: of an empty one."""
    bps: float
    """Bytes that a rank receives per second."""
    most_bytes: float = 0.0
    """Larger ones have the next rate; 0: the last rate."""


def message_s(rates: Sequence[LinkRate], message: CollectiveLoad) -> float:
    """Seconds of all of a message's collectives, each of the mean size."""
    if not message.count:
        return 0.0
    size = message.received_bytes / message.count
    rate = next((rate for rate in rates if size <= rate.most_bytes), rates[-1])
    return message.count * rate.latency_s + message.received_bytes / rate.bps
