"""How a group's ranks reach other groups, from its settings.

Invariant: leader and ranks of a group speak of the same transport, because both have it from here.
"""

from splash_core.config import GroupSettings
from splash_core.leader.host import reachable_host
from splash_core.transport.kinds import memory_kind
from splash_core.transport.options import TransportOptions


def transport_options(settings: GroupSettings) -> TransportOptions:
    """The transport of a group's ranks."""
    return TransportOptions(
        name=settings.transport,
        memory=memory_kind(settings.device).name,
        protocol=settings.transport_protocol,
        devices=settings.transport_devices,
        bind=settings.host,
        host=settings.transport_host or reachable_host(settings.host),
        ports=settings.transport_ports,
        answer_timeout_s=settings.transport_timeout_s,
        stall_timeout_s=settings.transport_stall_s,
    )
