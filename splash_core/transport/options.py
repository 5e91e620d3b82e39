"""Which transport a group's ranks use and how: made from settings by the leader, read by every rank.

Invariant: two groups whose `speaks` differ never pair, so no byte is sent to a peer that expects other words.
"""

from dataclasses import dataclass

from splash_core.transport.kinds import HOST

SHM, MOONCAKE = "shm", "mooncake"
_WORDS = {SHM: "3", MOONCAKE: "2"}
"""Versions of what two sides say to each other before the first write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """How a rank reaches other groups' memory; all but `name` and `memory` are Mooncake's."""

    name: str = SHM
    memory: str = HOST.name
    """The kind of memory that the arenas lie in that it writes from and to."""
    writer: str = ""
    """Incarnation of the group that this rank writes for: by it, peers end all of the group's sessions."""
    protocol: str = "tcp"
    """What carries bytes: `tcp` or `rdma`."""
    devices: str = ""
    """RDMA devices (rails), separated by commas; empty: those that the library finds."""
    bind: str = "127.0.0.1"
    """Address that the control channel listens on."""
    host: str = "127.0.0.1"
    """Address at which peers reach this host."""
    ports: str = ""
    """`LOW-HIGH`: ports to listen on; empty: free ones."""
    answer_timeout_s: float = 5.0
    """A peer that does not answer within this time is not written to."""
    stall_timeout_s: int = 3
    """A write whose bytes do not move for so long fails."""

    @property
    def speaks(self) -> str:
        """What both sides must agree on: transport, protocol and version, as the KV ABI shows it."""
        words = [self.name] if self.name == SHM else [self.name, self.protocol]
        words += [] if self.memory == HOST.name else [self.memory]
        return " ".join([*words, _WORDS.get(self.name, "1")])

    def stays_within(self, host: str) -> bool:
        """True if no network carries writes to `host`: the kernel brings those over TCP back to ourselves."""
        return self.protocol == "tcp" and host == self.host

    @property
    def port_range(self) -> range:
        """The ports of `ports`; empty if any will do."""
        if not self.ports:
            return range(0)
        low, _, high = self.ports.partition("-")
        return range(int(low), int(high or low) + 1)
