"""Does a transport carry bytes: one megabyte from this host to itself."""

import dataclasses
from collections.abc import Iterator

from services.doctor.verdicts import Finding, failed, from_error, passed
from splash_core.config import GroupSettings, UpSettings
from splash_core.errors import SplashError
from splash_core.leader.reaching import transport_options
from splash_core.settings_base import shared_fields
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, OpState, OpStatus, TrafficClass
from splash_core.transport.factory import open_transport
from splash_core.transport.options import HOST, SHM, TransportOptions
from splash_core.units import MIB

NOTHING = KvAbi(
    version="", dtype="", page_size=0, layers=0, latent_dim=0, rope_dim=0, rope="", scale="", model="doctor"
)
_PATTERN = bytes(range(251))
_TIMEOUT_S = 30.0


def options_of(settings: UpSettings) -> TransportOptions:
    """The transport that ranks would use with these settings."""
    group = GroupSettings(**shared_fields(settings, GroupSettings))  # type: ignore[arg-type]
    return transport_options(group)


def self_tests(settings: UpSettings) -> Iterator[Finding]:
    """Shared memory always, and the transport of the settings."""
    # Of host memory; `gpus` looks at that of GPUs.
    options = dataclasses.replace(options_of(settings), memory=HOST)
    for each in dict.fromkeys((dataclasses.replace(options, name=SHM), options)):
        name = f"{each.name} self-test"
        try:
            status, same = _round_trip(each)
        except SplashError as error:
            yield from_error(name, error)
            continue
        if status.state is not OpState.DONE:
            yield failed(name, f"1 MiB to ourselves: {status.error or status.state}", _ADVICE)
        elif not same:
            yield failed(name, "1 MiB to ourselves arrived changed", "check the host's memory and network")
        else:
            yield passed(name, f"1 MiB to ourselves over {each.speaks}")


_ADVICE = "check that --host, --transport-host and --transport-ports are reachable from this host itself"


def _round_trip(options: TransportOptions) -> tuple[OpStatus, bool]:
    """Write a pattern from one arena into another; how it ended, and whether the bytes are the same."""
    source, target = ArenaMemory(MIB), ArenaMemory(MIB)
    pattern = (_PATTERN * (MIB // len(_PATTERN) + 1))[:MIB]
    writer = open_transport(options)
    try:
        reader = open_transport(options)
        try:
            writer.register(source, NOTHING)
            source.write(0, pattern)
            peer = writer.connect(reader.register(target, NOTHING).address, NOTHING)
            op = writer.write(
                peer,
                [Descriptor(0, 0, MIB)],
                traffic=TrafficClass.HANDOFF,
                deadline_s=_TIMEOUT_S,
                attempt=1,
            )
            status = op.wait(_TIMEOUT_S)
            return status, target.read(0, MIB) == pattern
        finally:
            # The writer first: while it is open, its peer is asked whether all is quiet.
            writer.close(drain=False)
            reader.close(drain=False)
    finally:
        source.close()
        target.close()
