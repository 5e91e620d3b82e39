"""Which GPUs the groups of a host have: their own, unless they are named."""

import subprocess
import sys
from pathlib import Path

import pytest

from splash_core.config import GroupSettings, UpSettings, resolve
from splash_core.errors import ConfigError, Infeasible
from splash_core.leader.gpus import check_gpus, group_gpus, stack_gpus
from splash_core.transport.cuda_library import CudaLibrary, count_gpus
from tests.support.scripted_cuda import NUM_GPUS, ScriptedCuda


def _stack(**fields: object) -> tuple[str, str]:
    return stack_gpus(resolve(UpSettings, flags={"device": "cuda", **fields}, environ={}))


def test_a_group_alone_has_the_first_gpus() -> None:
    assert group_gpus(GroupSettings(device="cuda", ranks=3)) == (0, 1, 2)
    assert group_gpus(GroupSettings(device="cuda", ranks=2, gpus="4,1")) == (4, 1)
    assert group_gpus(GroupSettings()) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "cuda", "ranks": 2, "gpus": "0"}, "names 1, but there are 2 --ranks"),
        ({"gpus": "0,1"}, "--device cpu: use --device cuda"),
    ],
)
def test_gpus_that_do_not_fit_the_ranks_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        group_gpus(GroupSettings(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0,0", "0,", "a", "-1", "0 1", "0,00"])
def test_a_text_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of different GPU numbers such as 0,1"):
        resolve(GroupSettings, flags={"gpus": text}, environ={})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("0,1", "2,3")),
        ({"prefill_ranks": 1, "decode_ranks": 3}, ("0", "1,2,3")),
        ({"prefill_gpus": "2,3"}, ("2,3", "0,1")),
        ({"decode_gpus": "1,0"}, ("2,3", "1,0")),
        ({"decode_gpus": "0,1", "prefill_gpus": "0,1", "memory_fraction": 0.45}, ("0,1", "0,1")),
        ({"decode_gpus": "0,1", "prefill_gpus": "1,2", "kv_bytes": 1 << 30}, ("1,2", "0,1")),
        ({"device": "cpu"}, ("", "")),
    ],
)
def test_a_stack_s_groups_share_no_gpu_unless_they_are_told_to(
    fields: dict[str, object], expected: tuple[str, str]
) -> None:
    assert _stack(**fields) == expected


def test_two_groups_that_would_each_take_most_of_a_gpu_are_refused() -> None:
    with pytest.raises(Infeasible, match=r"both groups have GPUs 1, and each would take 0\.85 of"):
        _stack(prefill_gpus="0,1", decode_gpus="1,2")


def test_gpus_are_counted_by_the_driver() -> None:
    cuda = ScriptedCuda()
    assert count_gpus(cuda) == NUM_GPUS
    assert cuda.asked == ["cuInit", "cuDeviceGetCount"]
    cuda.failing["cuInit"] = 100
    with pytest.raises(ConfigError, match=r"finds no GPU \(cuInit: .*\(100\)\); check `nvidia-smi` and"):
        count_gpus(cuda)
    with pytest.raises(ConfigError, match=r"libnothere.so cannot be used.*--device cpu"):
        CudaLibrary("libnothere.so")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 3}, "--ranks 3 would have GPUs 0,1,2, but this host has 2 and no 2 .*fewer --ranks"),
        ({"ranks": 2, "gpus": "7,0"}, "--ranks 2 would have GPUs 7,0, but this host has 2 and no 7"),
    ],
)
def test_gpus_that_the_host_has_not_are_refused(fields: dict[str, object], words: str) -> None:
    settings = GroupSettings(device="cuda", **fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        check_gpus(settings, count=lambda kind: 2)


def test_a_torch_without_cuda_is_refused_and_a_cpu_needs_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GroupSettings(device="cuda", ranks=2)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cpu")
    with pytest.raises(ConfigError, match=r"torch 2\.11\.0\+cpu is built for CPUs"):
        check_gpus(settings, count=lambda kind: 2)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cu128")
    check_gpus(settings, count=lambda kind: 2)
    check_gpus(GroupSettings(), count=lambda kind: 0)


UP = ["--prefill-ranks", "1", "--prefill-gpus", "998", "--decode-ranks", "1", "--decode-gpus", "999"]
GROUP = ["--ranks", "1", "--gpus", "998", "--port", "0"]


@pytest.mark.parametrize(("command", "flags"), [("up", UP), ("prefill", GROUP), ("decode", GROUP)])
def test_services_for_gpus_that_are_not_there_are_refused_before_anything_starts(
    command: str, flags: list[str], tiny_v3: Path, tmp_path: Path
) -> None:
    asked = [command, "--model", str(tiny_v3), "--device", "cuda", "--run-dir", str(tmp_path), *flags]
    ended = subprocess.run(
        [sys.executable, "-m", "services", *asked], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "--device cuda" in ended.stderr or "998" in ended.stderr
    assert "use --device cpu" in ended.stderr
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "nothing has a folder of its own"
