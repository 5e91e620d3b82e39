"""Settings of a worker group's links to other groups: what carries pages, and who sends when."""

from dataclasses import dataclass

from splash_core.settings_base import COUNT, POSITIVE, a_port_range, setting
from splash_core.settings_model import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings(ModelSettings):
    """How KV pages cross between groups, and what they share with switches."""

    transport: str = setting(
        "shm",
        "How KV pages cross between groups: shm on one host, mooncake also between hosts. What follows with "
        "this prefix is mooncake's.",
        choices=("shm", "mooncake"),
    )
    transport_protocol: str = setting("tcp", "What carries pages.", choices=("tcp", "rdma"))
    transport_devices: str = setting(
        "", "RDMA devices (rails) to use, separated by commas; default: those that are found."
    )
    transport_ports: str = setting(
        "", "Ports that ranks listen on, as LOW-HIGH; default: free ones.", form=a_port_range
    )
    transport_timeout_s: float = setting(
        5.0, "A rank that does not answer within this time is not written to.", unit="s", within=POSITIVE
    )
    transport_stall_s: int = setting(
        3, "A write whose bytes do not move for so long fails.", unit="s", within=COUNT
    )
    transport_silence_s: float = setting(
        30.0,
        "A writer of which a decode group has heard nothing for so long is fenced: the ranks end its "
        "sessions, then its pages are free. (Over shm they wait until its processes have ended.)",
        unit="s",
        within=POSITIVE,
    )
    link_bytes_per_s: float = setting(
        0.0,
        "Budget of a rank's link to other hosts, which on CPUs switches share; 0: none. Somewhat "
        "less than what it carries (0.95 of that, say) keeps its queue short for what asks nobody. Writes "
        "within a host do not count.",
        unit="bytes/s",
    )
    link_chunk_bytes: int = setting(
        0,
        "Largest piece that a handoff sends at a time; with a budget at most 5 ms of it, 64 KiB at least. "
        "0: 1 MiB, between GPUs of a host 16 MiB.",
        unit="bytes",
    )
    link_in_flight: int = setting(
        4, "Such pieces that a rank has under way, or more of smaller ones.", within=COUNT
    )
    link_pause_s: float = setting(
        0.25,
        "Longest time that a switch holds handoffs back; then they have an eighth of the budget.",
        unit="s",
    )
