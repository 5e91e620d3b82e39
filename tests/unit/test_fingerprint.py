"""Equal copies have one fingerprint; other weights, another config or other tensors have another."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from splash_core.config import GroupSettings
from splash_core.errors import ConfigError
from splash_core.leader.fingerprint import checkpoint_fingerprint, same_checkpoint, served_fingerprint
from splash_core.rpc.abi import abi_from_pb, abi_to_pb, kv_abi
from splash_core.spec.model import ModelSpec
from splash_core.transport.abi import KvAbi, abi_diff
from tests.conftest import TinyFactory


def _abi(folder: Path) -> KvAbi:
    spec = ModelSpec.from_checkpoint(folder)
    return kv_abi(
        spec, dtype="fp32", page_size=8, fingerprint=checkpoint_fingerprint(folder), transport="shm 3"
    )


def test_a_copy_in_another_folder_may_exchange_kv(tiny_v3: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_v3, tmp_path / "another-name"))
    config = json.loads((copy / "config.json").read_text()) | {"_name_or_path": "elsewhere"}
    (copy / "config.json").write_text(json.dumps(config))
    ours, theirs = _abi(tiny_v3), _abi(copy)
    assert ours.model_name != theirs.model_name
    assert abi_diff(ours, theirs) == []
    assert abi_from_pb(abi_to_pb(ours)) == ours


def test_other_weights_in_a_folder_of_the_same_name_are_refused(
    tiny_checkpoint: TinyFactory, tmp_path: Path
) -> None:
    one, other = (
        Path(shutil.copytree(tiny_checkpoint("v3", seed=seed), tmp_path / str(seed) / "model"))
        for seed in (0, 1)
    )
    ours, theirs = _abi(one), _abi(other)
    assert abi_diff(ours, theirs) == [f"model: ours '{ours.model}' (model), theirs '{theirs.model}' (model)"]


def _change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))


def _change_last_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _grow(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("change", [_change_config, _change_last_byte, _grow])
def test_any_such_change_is_another_model(
    tiny_v3: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    copy = Path(shutil.copytree(tiny_v3, tmp_path / "copy"))
    change(copy)
    assert checkpoint_fingerprint(copy) != checkpoint_fingerprint(tiny_v3)


def test_a_file_that_is_cut_off_is_named(tiny_v3: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_v3, tmp_path / "copy"))
    (copy / "model.safetensors").write_bytes((tiny_v3 / "model.safetensors").read_bytes()[:100])
    with pytest.raises(ConfigError, match="cut off"):
        checkpoint_fingerprint(copy)


def test_a_folder_without_weights_is_compared_by_its_config(tiny_v3: Path, tmp_path: Path) -> None:
    whole, bare = checkpoint_fingerprint(tiny_v3), tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tiny_v3 / "config.json", bare)
    assert same_checkpoint(checkpoint_fingerprint(bare), whole)
    assert same_checkpoint(whole, checkpoint_fingerprint(bare))
    _change_config(bare)
    assert not same_checkpoint(checkpoint_fingerprint(bare), whole)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"), [("a-1", "a-1", True), ("a-1", "a-2", False), ("a-1", "", False)]
)
def test_weights_are_compared_where_both_have_them(ours: str, theirs: str, same: bool) -> None:
    assert same_checkpoint(ours, theirs) is same


def test_random_weights_are_known_by_config_and_seed_alone(tiny_v3: Path, bare: Path) -> None:
    def of(folder: Path, seed: int) -> str:
        return served_fingerprint(GroupSettings(load_format="dummy", dummy_seed=seed), folder)

    assert of(bare, 3) == of(tiny_v3, 3)
    assert not same_checkpoint(of(bare, 3), of(bare, 4))
    assert not same_checkpoint(of(bare, 3), checkpoint_fingerprint(tiny_v3))
    assert same_checkpoint(of(bare, 3), checkpoint_fingerprint(bare))
    assert served_fingerprint(GroupSettings(), tiny_v3) == checkpoint_fingerprint(tiny_v3)
