"""What a group talks through follows from what its ranks are, and what does not go together is refused."""

import pytest
import torch

from splash_core.dist.futex import SUPPORTED_MACHINE
from splash_core.dist.meeting import Backend, LaunchConfig, Presence, choose
from splash_core.errors import ConfigError
from splash_core.ids import RankId

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def config(backend: Backend = Backend.AUTO, device: torch.device = CPU) -> LaunchConfig:
    return LaunchConfig(rank=RankId(0), num_ranks=2, rendezvous="file:///x", backend=backend, device=device)


def peers(*gpus: str, backend: Backend = Backend.AUTO, host: str = "h") -> list[Presence]:
    return [
        Presence(host=host, machine=SUPPORTED_MACHINE, pid=1, backend=backend.value, gpu=gpu) for gpu in gpus
    ]


def test_auto_follows_the_device() -> None:
    assert choose(config(), peers("", "")) is Backend.SHM
    assert choose(config(), [*peers(""), *peers("", host="other")]) is Backend.GLOO
    assert choose(config(device=GPU), peers("a", "b")) is Backend.NCCL


def test_nccl_may_be_named() -> None:
    assert choose(config(Backend.NCCL, GPU), peers("a", "b", backend=Backend.NCCL)) is Backend.NCCL


@pytest.mark.parametrize(
    ("backend", "device", "gpus", "words"),
    [
        (Backend.NCCL, CPU, ("", ""), r"ranks \[0, 1\] compute on cpu"),
        (Backend.AUTO, GPU, ("a", ""), r"ranks \[1\] compute on cpu"),
        (Backend.AUTO, CPU, ("", "b"), r"ranks \[0\] compute on cpu"),
        (Backend.SHM, GPU, ("a", "b"), "shm carries host memory only; on cuda use nccl"),
        (Backend.GLOO, GPU, ("a", "b"), "gloo carries host memory only"),
        (Backend.AUTO, GPU, ("a", "a"), r"ranks \[0, 1\] are on one GPU \(a\); give each rank its own"),
    ],
)
def test_what_does_not_go_together_is_refused(
    backend: Backend, device: torch.device, gpus: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(config(backend, device), peers(*gpus, backend=backend))
