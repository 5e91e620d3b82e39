"""Two hosts on one machine: network namespaces joined by one link of limited rate. Needs root.

Both ends are called alike, so that what runs on either host is configured alike. Invariant: whatever happens
inside the block, the namespaces, and the processes left in them, are gone after it.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from types import TracebackType

from splash_core.errors import ConfigError

INTERFACE = "splash0"
_BURST_BYTES = 128 << 10
_QUEUE_MS = 50
"""Longest time that a packet waits in the link's queue, as in a switch with deep buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of the two."""

    space: str
    """Name of its network namespace."""
    address: str

    @property
    def command(self) -> list[str]:
        """What a command is started with to run there; gloo is told which interface to use."""
        return ["ip", "netns", "exec", self.space, "env", f"GLOO_SOCKET_IFNAME={INTERFACE}"]


class TwoHosts:
    """A context manager."""

    def __init__(self, *, link_bps: float) -> None:
        """Nothing is made yet.

        Args:
            link_bps: of the link, bytes per second in each direction.
        """
        self._link_bps = link_bps
        name = f"splash-{os.getpid()}"
        self.a = Host(space=f"{name}-a", address="10.77.0.1")
        self.b = Host(space=f"{name}-b", address="10.77.0.2")

    def __enter__(self) -> "TwoHosts":
        try:
            for host in (self.a, self.b):
                _ip("netns", "add", host.space)
            ends = ("name", INTERFACE, "netns", self.a.space, "type", "veth", "peer")
            _ip("link", "add", *ends, "name", INTERFACE, "netns", self.b.space)
            for host in (self.a, self.b):
                _ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
                _ip("-n", host.space, "link", "set", "lo", "up")
                _ip("-n", host.space, "link", "set", INTERFACE, "up")
                self._limit(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def carried_bytes(self) -> tuple[int, int]:
        """Bytes that the link has carried from A to B, and from B to A, headers included."""
        shown = _ip("-s", "-j", "-n", self.a.space, "link", "show", "dev", INTERFACE)
        counters = json.loads(shown)[0]["stats64"]
        return int(counters["tx"]["bytes"]), int(counters["rx"]["bytes"])

    def _limit(self, host: Host) -> None:
        rate = f"{round(self._link_bps * 8)}bit"
        shape = ["rate", rate, "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
        _run(["tc", "-n", host.space, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *shape])

    def _remove(self) -> None:
        for host in (self.a, self.b):
            subprocess.run(["ip", "netns", "del", host.space], check=False, capture_output=True)


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is not installed; install iproute2") from error
    except subprocess.CalledProcessError as error:
        cause = error.stderr.strip()
        raise ConfigError(f"{' '.join(command)}: {cause}; network namespaces need root on Linux") from error
    return done.stdout
