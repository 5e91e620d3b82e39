"""Mixed NCCL flavours are refused with commands that mend them; sound installations pass."""

import pytest

from splash_core.dist.nccl_packages import check_nccl_packages, installed_nccl
from splash_core.errors import ConfigError

CU12, CU13 = "nvidia-nccl-cu12", "nvidia-nccl-cu13"
AFRESH = "pip install --no-deps --force-reinstall"


@pytest.mark.parametrize(
    ("installed", "torch_cuda"),
    [
        ({}, "13.0"),  # torch brings its own library
        ({CU13: "2.28.9"}, "13.0"),
        ({CU12: "2.28.9"}, "12.9"),
        ({CU12: "2.28.9", CU13: "2.28.9"}, None),  # a CPU build loads neither
        ({CU12: "2.28.9"}, "14.0"),  # a CUDA that we know nothing of
    ],
)
def test_sound_installations_pass(installed: dict[str, str], torch_cuda: str | None) -> None:
    check_nccl_packages(installed, torch_cuda)


@pytest.mark.parametrize(
    ("installed", "torch_cuda", "remedy"),
    [
        (
            {CU12: "2.29.1", CU13: "2.28.9"},
            "12.9",
            f"`pip uninstall {CU12} {CU13}` and then `{AFRESH} {CU12}==2.29.1`",
        ),
        (
            {CU12: "2.29.1", CU13: "2.28.9"},
            "13.0",
            f"`pip uninstall {CU12} {CU13}` and then `{AFRESH} {CU13}==2.28.9`",
        ),
        (
            {CU13: "2.28.9"},
            "12.9",
            f"`pip uninstall {CU13}` and then `{AFRESH} {CU12}`",
        ),
    ],
)
def test_foreign_flavours_are_refused_with_the_remedy(
    installed: dict[str, str], torch_cuda: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_nccl_packages(installed, torch_cuda)
    message = str(raised.value)
    assert remedy in message
    assert torch_cuda in message
    assert all(f"{package} {version}" in message for package, version in installed.items())


def test_only_nccl_packages_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(package: str) -> str:
        if package == CU13:
            return "2.28.9"
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    assert installed_nccl() == {CU13: "2.28.9"}
