"""Checks of this host's GPUs, and of handing pages from those of prefill to those of decode.

Torch, which takes seconds, is loaded only with `--device cuda`.
"""

from collections.abc import Iterator

from services.doctor.verdicts import Finding, failed, from_error, passed
from services.doctor.wires import NOTHING
from splash_core.config import UpSettings
from splash_core.errors import SplashError
from splash_core.leader.gpus import stack_gpus
from splash_core.transport.base import Descriptor, OpState, TrafficClass
from splash_core.transport.memory import Memory
from splash_core.transport.shm import ShmTransport
from splash_core.units import MIB

_NUM_BYTES = 4 * MIB
_TIMEOUT_S = 30.0
_PATTERN = 7


def gpus(settings: UpSettings) -> Iterator[Finding]:
    """Are the groups' GPUs there, and does each prefill GPU reach each decode GPU; nothing on CPU."""
    if settings.device == "cpu":
        return
    try:
        prefill, decode = ([int(gpu) for gpu in text.split(",")] for text in stack_gpus(settings))
    except SplashError as error:
        yield from_error("--prefill-gpus, --decode-gpus", error)
        return
    import torch

    there = torch.cuda.device_count()
    missing = sorted({gpu for gpu in (*prefill, *decode) if gpu >= there})
    if missing:
        yield failed(
            "GPUs",
            f"the groups want {', '.join(map(str, missing))}, torch sees {there}",
            "fewer ranks, or --prefill-gpus and --decode-gpus, which may share GPUs",
        )
        return
    yield passed("GPUs", f"prefill {prefill}, decode {decode}, of {there}")
    for source in prefill:
        for target in decode:
            yield _reaches(source, target)


def _reaches(source: int, target: int) -> Finding:
    import torch

    from splash_core.transport.cuda_driver import CudaDriver
    from splash_core.transport.device_memory import DeviceMemory, DriverError

    name = f"GPU {source} → GPU {target}"
    try:
        here = DeviceMemory(_NUM_BYTES, CudaDriver(source))
        there = DeviceMemory(_NUM_BYTES, CudaDriver(target))
        here.bytes_B.fill_(_PATTERN)
        torch.cuda.synchronize(source)
        return written(name, here, there)
    except SplashError as error:
        return from_error(name, error)
    except DriverError as error:
        return failed(name, str(error), "check `nvidia-smi` and `nvidia-smi topo -p2p r`")


def written(name: str, source: Memory, target: Memory) -> Finding:
    """Write one memory into another, over the single-host transport, and look at what arrived."""
    writer, reader = ShmTransport(copies=source.copies()), ShmTransport(copies=target.copies())
    try:
        writer.register(source, NOTHING)
        peer = writer.connect(reader.register(target, NOTHING).address, NOTHING)
        whole = Descriptor(0, 0, source.num_bytes)
        op = writer.write(peer, [whole], traffic=TrafficClass.HANDOFF, deadline_s=_TIMEOUT_S, attempt=1)
        status = op.wait(_TIMEOUT_S)
    finally:
        writer.close(drain=False)
        reader.close(drain=False)
    if status.state is not OpState.DONE:
        return failed(name, status.error or status.state, "check `nvidia-smi topo -p2p r`")
    if not bool((target.bytes_B.cpu() == source.bytes_B.cpu()).all()):
        return failed(name, "what was written arrived changed", "check the GPUs and their links")
    return passed(name, f"{source.num_bytes // MIB} MiB arrived")
