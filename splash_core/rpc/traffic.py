"""Counts of traffic on the wire."""

from collections.abc import Iterable

from splash_core.pb import common_pb2
from splash_core.transport.counters import TrafficCount, TrafficSample


def samples_to_pb(samples: Iterable[TrafficSample]) -> list[common_pb2.TrafficSample]:
    """For a report."""
    return [
        common_pb2.TrafficSample(
            name=sample.count.value, traffic=sample.traffic, peer=sample.peer, value=sample.value
        )
        for sample in samples
    ]


def samples_from_pb(messages: Iterable[common_pb2.TrafficSample]) -> tuple[TrafficSample, ...]:
    """Of a report; raises `ValueError` for a count that this version does not know."""
    return tuple(
        TrafficSample(TrafficCount(message.name), message.traffic, message.peer, message.value)
        for message in messages
    )
