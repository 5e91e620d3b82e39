"""Which GPUs of a host a group's ranks have, from settings.

Invariant: each rank of a group has another one, and nothing is started for GPUs that the host has not.
"""

import importlib.metadata
from collections.abc import Callable

from splash_core.config import GroupSettings, UpSettings
from splash_core.errors import ConfigError, Infeasible
from splash_core.transport.device_count import num_devices
from splash_core.transport.kinds import DeviceKind, device_kind


def group_gpus(settings: GroupSettings) -> tuple[int, ...]:
    """The GPUs of a group's ranks, in their order; none on CPU.

    Raises:
        ConfigError: they are not as many as the ranks, or there is nothing for them to do.
    """
    named = _numbers(settings.gpus)
    if settings.device == "cpu":
        if named:
            raise ConfigError(f"--gpus {settings.gpus} with --device cpu: use --device cuda, or leave it out")
        return ()
    if named and len(named) != settings.ranks:
        raise ConfigError(
            f"--gpus {settings.gpus} names {len(named)}, but there are {settings.ranks} --ranks: name one "
            "for each"
        )
    return named or tuple(range(settings.ranks))


def stack_gpus(settings: UpSettings) -> tuple[str, str]:
    """`--gpus` of the prefill and of the decode group of `splash up`: different ones, unless named otherwise.

    Raises:
        Infeasible: both groups have a GPU whose memory each of them would take for itself.
    """
    if settings.device == "cpu":
        return settings.prefill_gpus, settings.decode_gpus
    prefill, decode = _numbers(settings.prefill_gpus), _numbers(settings.decode_gpus)
    prefill = prefill or _lowest(settings.prefill_ranks, without=decode)
    decode = decode or _lowest(settings.decode_ranks, without=prefill)
    shared = sorted(set(prefill) & set(decode))
    # With --kv-bytes the operator has said how much they take.
    if shared and not settings.kv_bytes and settings.memory_fraction > 0.5:
        raise Infeasible(
            f"both groups have GPUs {_text(shared)}, and each would take {settings.memory_fraction:g} of "
            "their memory",
            nearest="--memory-fraction 0.45, or GPUs of their own",
        )
    return _text(prefill), _text(decode)


def check_gpus(settings: GroupSettings, *, count: Callable[[DeviceKind], int] = num_devices) -> None:
    """Return if the host has the GPUs of a group's ranks; to be asked before anything is started.

    Args:
        settings: the group's.
        count: how many a host has.

    Raises:
        ConfigError: it has none, too few, or no torch that could use them.
    """
    kind = device_kind(settings.device)
    if kind is None:
        return
    wanted = group_gpus(settings)
    there = count(kind)
    if missing := [gpu for gpu in wanted if gpu >= there]:
        raise ConfigError(
            f"--ranks {settings.ranks} would have GPUs {_text(wanted)}, but this host has {there} and no "
            f"{_text(missing)} (see {kind.look}); set fewer --ranks, or name others with --gpus: two groups "
            "may share them, each with its part of --memory-fraction; or use --device cpu"
        )
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError("torch is not installed, which ranks compute with: pip install torch") from error
    if version.endswith("+cpu"):
        raise ConfigError(
            f"--device {settings.device}: torch {version} is built for CPUs; install a CUDA build of torch, "
            "or use --device cpu"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _lowest(count: int, *, without: tuple[int, ...]) -> tuple[int, ...]:
    free = (gpu for gpu in range(count + len(without)) if gpu not in without)
    return tuple(free)[:count]


def _text(gpus: "tuple[int, ...] | list[int]") -> str:
    return ",".join(map(str, gpus))
