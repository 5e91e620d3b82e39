"""Does a transport carry bytes: one megabyte from this host to itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from services.doctor.verdicts import CheckResult, failed, from_error, passed
from splash_core.config import GroupSettings, UpSettings
from splash_core.errors import SplashError
from splash_core.leader.reaching import transport_options
from splash_core.settings_base import shared_fields
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, OpState, OpStatus, TrafficClass, Transport
from splash_core.transport.factory import open_transport
from splash_core.transport.kinds import HOST
from splash_core.transport.memory import Memory
from splash_core.transport.options import TransportOptions
from splash_core.transport.reach import check_reach
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


def self_tests(settings: UpSettings) -> Iterator[CheckResult]:
    """The transport of the settings, where arenas lie in host memory; `gpus` looks at that of GPUs."""
    options = options_of(settings)
    name = f"{options.name} self-test"
    try:
        check_reach(options)
        if options.memory != HOST.name:
            return
        status, same = _round_trip(options)
    except SplashError as error:
        yield from_error(name, error)
        return
    if status.state is not OpState.DONE:
        yield failed(name, f"1 MiB to ourselves: {status.error or status.state}", _ADVICE)
    elif not same:
        yield failed(name, "1 MiB to ourselves arrived changed", "check the host's memory and network")
    else:
        yield passed(name, f"1 MiB to ourselves over {options.speaks}")


_ADVICE = "check that --host, --transport-host and --transport-ports are reachable from this host itself"


def carried(source: Memory, target: Memory, open_for: Callable[[Memory], Transport]) -> OpStatus:
    """Write all of one memory into another; how that ended, when nothing is under way any more.

    Args:
        source: what is written.
        target: as large.
        open_for: opens a transport for one of them.
    """
    with ExitStack() as stack:
        reader = open_for(target)
        stack.callback(reader.close, drain=False)
        writer = open_for(source)
        # Closed first: while it is open, its peer is asked whether all is quiet.
        stack.callback(writer.close, drain=False)
        writer.register(source, NOTHING)
        peer = writer.connect(reader.register(target, NOTHING).address, NOTHING)
        whole = Descriptor(0, 0, source.num_bytes)
        op = writer.write(peer, [whole], traffic=TrafficClass.HANDOFF, deadline_s=_TIMEOUT_S, attempt=1)
        return op.wait(_TIMEOUT_S)


def _round_trip(options: TransportOptions) -> tuple[OpStatus, bool]:
    """Write a pattern from one arena into another; how it ended, and whether the bytes are the same."""
    pattern = (_PATTERN * (MIB // len(_PATTERN) + 1))[:MIB]
    with ExitStack() as stack:
        source, target = ArenaMemory(MIB), ArenaMemory(MIB)
        stack.callback(source.close)
        stack.callback(target.close)
        source.write(0, pattern)
        status = carried(source, target, lambda memory: open_transport(options, copies=memory.copies()))
        return status, target.read(0, MIB) == pattern
