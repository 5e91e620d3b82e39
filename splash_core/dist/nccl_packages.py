"""Which NCCL a process loads, as far as installed packages tell.

The CUDA 12 and CUDA 13 flavours of NVIDIA's NCCL package put their library at the same path, so installing
one overwrites the other: torch then loads a library for another CUDA than its own, which fails late and
obscurely. Invariant: such an installation is refused at start, with the commands that mend it.
"""

from collections.abc import Mapping
from importlib import metadata

from splash_core.errors import ConfigError

_PACKAGES = {"12": "nvidia-nccl-cu12", "13": "nvidia-nccl-cu13"}
"""By the major version of the CUDA that they are for."""


def installed_nccl() -> dict[str, str]:
    """Installed NCCL packages and their versions."""
    found: dict[str, str] = {}
    for package in _PACKAGES.values():
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def check_nccl_packages(installed: Mapping[str, str], torch_cuda: str | None) -> None:
    """Refuse NCCL packages for another CUDA than torch's, alone or beside the right one.

    Args:
        installed: NCCL packages and versions; empty where torch brings its own library.
        torch_cuda: the CUDA version that torch was built with, as in `torch.version.cuda`.

    Raises:
        ConfigError: names the packages and the remedy.
    """
    if torch_cuda is None:
        return
    major = torch_cuda.partition(".")[0]
    wanted = _PACKAGES.get(major)
    foreign = sorted(package for package in installed if package != wanted)
    if not foreign or wanted is None:
        return
    have = ", ".join(f"{package} {version}" for package, version in sorted(installed.items()))
    version = f"=={installed[wanted]}" if wanted in installed else ""
    raise ConfigError(
        f"torch was built for CUDA {torch_cuda}, but of NCCL {have} is installed: both flavours write the "
        f"same library file. Run `pip uninstall {' '.join(sorted(installed))}` and then "
        f"`pip install --no-deps --force-reinstall {wanted}{version}`"
    )
