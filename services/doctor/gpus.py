"""Checks of this host's GPUs, and of handing pages from those of prefill to those of decode.

Torch, which takes seconds, is loaded only with `--device cuda`.
"""

from collections.abc import Iterator

from services.doctor.verdicts import CheckResult, failed, from_error, passed
from services.doctor.wires import carried
from splash_core.config import UpSettings
from splash_core.errors import SplashError
from splash_core.leader.gpus import stack_gpus
from splash_core.transport.base import OpState
from splash_core.transport.kinds import DeviceKind, device_kind
from splash_core.transport.memory import Memory
from splash_core.transport.shm import ShmTransport
from splash_core.units import MIB

_NUM_BYTES = 4 * MIB
_PATTERN = 7


def gpus(settings: UpSettings) -> Iterator[CheckResult]:
    """Are the groups' GPUs there, and does each prefill GPU reach each decode GPU; nothing on CPU."""
    kind = device_kind(settings.device)
    if kind is None:
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
            "fewer ranks, or --prefill-gpus and --decode-gpus, which may share GPUs"
            if there
            else "a CUDA build of torch, and a driver with which nvidia-smi lists GPUs; or --device cpu",
        )
        return
    yield passed("GPUs", f"prefill {prefill}, decode {decode}, of {there}")
    for source in prefill:
        for target in decode:
            yield _reaches(kind, source, target)


def _reaches(kind: DeviceKind, source: int, target: int) -> CheckResult:
    import torch

    from splash_core.transport.device_memory import DeviceMemory
    from splash_core.transport.drivers import open_driver

    name = f"GPU {source} → GPU {target}"
    try:
        here = DeviceMemory(_NUM_BYTES, open_driver(kind, source))
        there = DeviceMemory(_NUM_BYTES, open_driver(kind, target))
        here.bytes_B.fill_(_PATTERN)
        torch.cuda.synchronize(source)
        return written(name, kind, here, there)
    except SplashError as error:
        return from_error(name, error)


def written(name: str, kind: DeviceKind, source: Memory, target: Memory) -> CheckResult:
    """Write one memory into another, over the single-host transport, and look at what arrived."""
    status = carried(source, target, lambda memory: ShmTransport(copies=memory.copies()))
    if status.state is not OpState.DONE:
        return failed(name, status.error or status.state, f"check {kind.look_at_links}")
    if not bool((target.bytes_B.cpu() == source.bytes_B.cpu()).all()):
        return failed(name, "what was written arrived changed", "check the GPUs and their links")
    return passed(name, f"{source.num_bytes // MIB} MiB arrived")
