"""A fetched model is complete and undamaged, or it is said to be absent."""

from pathlib import Path

import pytest

from splash_core.checkpoints import smollm2
from splash_core.checkpoints.cache import DEMO_MODEL, SUMS, ModelCache, check_sha256, file_sha256
from splash_core.errors import ConfigError


def install(cache: ModelCache, name: str, content: str) -> Path:
    """Put a one-file model into the cache."""
    with cache.workspace() as workspace:
        folder = workspace / name
        folder.mkdir()
        (folder / "weights").write_text(content)
        return cache.install(name, folder)


def test_installed_model_is_found_whole_and_workspace_is_gone(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    assert cache.problem("m") == "not fetched"
    folder = install(cache, "m", "abc")
    assert cache.problem("m") is None
    assert (folder / "weights").read_text() == "abc"
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("damage", ["change", "remove", "sums", "no sums"])
def test_damage_is_detected_and_repaired_by_a_new_install(tmp_path: Path, damage: str) -> None:
    cache = ModelCache(tmp_path)
    folder = install(cache, "m", "abc")
    if damage == "change":
        (folder / "weights").write_text("abd")
    elif damage == "remove":
        (folder / "weights").unlink()
    elif damage == "sums":
        (folder / SUMS).write_text("{")
    else:
        (folder / SUMS).unlink()
    problem = cache.problem("m")
    assert problem is not None
    assert str(folder) in problem
    install(cache, "m", "new")
    assert cache.problem("m") is None
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_failure_in_the_workspace_leaves_nothing(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)

    def break_off() -> None:
        with cache.workspace() as workspace:
            (workspace / "half").write_text("x")
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        break_off()
    assert list(tmp_path.iterdir()) == []


def test_wrong_sum_names_the_file_and_both_sums(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("abc")
    check_sha256(path, file_sha256(path))
    with pytest.raises(ConfigError, match=f"{path} has SHA-256 ba7816bf.*expected 00"):
        check_sha256(path, "00")


def test_foreign_source_files_are_refused(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    with pytest.raises(ConfigError, match="is not a file"):
        smollm2.fetch(cache, source=tmp_path / "absent.gguf", progress=lambda _: None)
    other = tmp_path / "other.gguf"
    other.write_text("not a model")
    with pytest.raises(ConfigError, match="expected b179c952"):
        smollm2.fetch(cache, source=other, progress=lambda _: None)
    assert cache.problem(DEMO_MODEL) == "not fetched"


def test_model_is_named_by_folder_or_by_fetched_name(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    local = tmp_path / "local"
    local.mkdir()
    (local / "config.json").write_text("{}")
    with cache.workspace() as workspace:
        (workspace / "m").mkdir()
        (workspace / "m" / "config.json").write_text("{}")
        fetched = cache.install("m", workspace / "m")
    assert cache.resolve(str(local)) == local
    assert cache.resolve("m") == fetched
    with pytest.raises(ConfigError, match="--model absent"):
        cache.resolve("absent")
