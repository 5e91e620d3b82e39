"""What commands write at their end is checked before they begin, and files are replaced whole."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from services.bench.burst_settings import BurstSettings
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.handoff import HandoffSettings
from services.bench.rollout_settings import RolloutSettings
from services.bench.settings import (
    AgreementSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.shared_link_settings import SharedLinkSettings
from services.cli import main
from services.options import settings_command
from services.outputs import check_output, replace_file, replace_text
from splash_core.config import resolve
from splash_core.errors import ConfigError
from splash_core.settings_base import Output, output

NOBODY_WRITES = Path("/proc/splash")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file and a folder in it, which checks leave as they are."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    yield tmp_path
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (Output.FILE, "file"),
        (Output.FILE, "new"),
        (Output.FILE, "a/b/new"),
        (Output.FOLDER, "folder"),
        (Output.FOLDER, "a/b"),
    ],
)
def test_what_can_be_written_is_let_pass(place: Path, wanted: Output, name: str) -> None:
    check_output(wanted, place / name, flag="--out")


@pytest.mark.parametrize(
    ("wanted", "name", "words"),
    [
        (Output.FILE, "folder", "is a folder; name a file in it"),
        (Output.FILE, "file/new", "Not a directory"),
        (Output.FOLDER, "file", "Not a directory"),
        (Output.FOLDER, "file/a/b", "Not a directory"),
        (Output.FILE, NOBODY_WRITES, "cannot be written .*; name a file where you may write"),
        (Output.FOLDER, NOBODY_WRITES / "a", "cannot be written .*; name a folder where you may write"),
    ],
)
def test_what_cannot_be_written_is_refused(place: Path, wanted: Output, name: str | Path, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^--out {place / name} .*{words}"):
        check_output(wanted, place / name, flag="--out")


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_output(Output.FILE, pipe, flag="--bundle")
        replace_text(pipe, "told")
        assert os.read(reader, 100) == b"told"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_check_does_not_open_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end would be the reader's, and without a reader it would wait for one."""
    pipe, may_write = tmp_path / "pipe", [True, False]
    os.mkfifo(pipe)
    monkeypatch.setattr(Path, "open", None)
    monkeypatch.setattr(os, "access", lambda path, mode: may_write.pop(0))
    check_output(Output.FILE, pipe, flag="--bundle")
    with pytest.raises(ConfigError, match="Permission denied"):
        check_output(Output.FILE, pipe, flag="--bundle")


def test_two_runs_that_write_one_file_write_it_one_after_the_other(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", list[str]()

    def slow(part: Path) -> None:
        part.write_text("slow")
        replace_text(path, "fast")
        texts.append(path.read_text())

    replace_file(path, slow)
    assert [*texts, path.read_text()] == ["fast", "slow"]
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path, link = tmp_path / "a" / "file.json", tmp_path / "link"
    replace_text(path, "old")
    link.symlink_to(path)

    def broken(part: Path) -> None:
        part.write_text("hal")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, broken)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path], "what was begun is gone"
    replace_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of a command that writes."""

    out: str = output(Output.FOLDER, "Folder.")


def test_a_command_s_outputs_are_checked_before_its_body_runs(place: Path) -> None:
    app, ran = typer.Typer(), list[str]()

    def body(settings: Settings, as_json: bool) -> int:
        del as_json
        ran.append(settings.out)
        return 0

    settings_command(app, "measure", Settings)(body)
    refused = CliRunner().invoke(app, ["--out", str(place / "file")])
    assert isinstance(refused.exception, ConfigError)
    assert ran == []
    assert CliRunner().invoke(app, ["--out", str(place / "folder")]).exit_code == 0
    assert ran == [str(place / "folder")]


@pytest.mark.parametrize(
    "kind",
    [
        AgreementSettings,
        BurstSettings,
        CalibrateSettings,
        CapacitySettings,
        HandoffSettings,
        PrimitivesSettings,
        RolloutSettings,
        SharedLinkSettings,
        SweepSettings,
        SwitchSettings,
    ],
)
def test_every_setting_that_names_what_is_written_says_so(kind: type) -> None:
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}
    assert fields["out"].metadata["writes"] is (Output.FILE if kind is CalibrateSettings else Output.FOLDER)
    for name in fields.keys() & {"results", "measured"}:
        assert fields[name].metadata["writes"]


@pytest.mark.parametrize(
    ("arguments", "module", "work"),
    [
        (["bench", "serve", "--out", "FILE"], "services.commands.model", "fetch_demo_model"),
        (["bench", "page", "FILE"], "services.bench.results_page", "page"),
        (
            ["simulate", "--workload", "poisson", "--plot", "FOLDER.png"],
            "services.commands.simulate",
            "compare",
        ),
        (["layout", "explain", "--bundle", "FOLDER"], "services.commands.layout", "connect"),
        (["model", "tiny", "FILE/x"], "splash_core.checkpoints.tiny", "write_tiny"),
    ],
)
def test_other_commands_refuse_before_they_begin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    module: str,
    work: str,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    names = {"FILE": "file", "FILE/x": "file/x", "FOLDER": "folder.png", "FOLDER.png": "folder.png"}
    asked = [str(tmp_path / names[word]) if word in names else word for word in arguments]
    monkeypatch.setattr(importlib.import_module(module), work, None)
    monkeypatch.setattr(sys, "argv", ["splash", *asked])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert str(tmp_path) in told.replace("\n", "")
    assert "name a f" in told


@pytest.mark.parametrize("flag", ["--label", "--commit"])
@pytest.mark.parametrize("word", ["a/../../b", "..\\b", "a b", "é", "x" * 65, "a\n"])
def test_words_of_a_files_name_are_checked_before_anything_is_measured(flag: str, word: str) -> None:
    kinds = (SwitchSettings, CalibrateSettings, BurstSettings, RolloutSettings)
    for kind in kinds:
        with pytest.raises(ConfigError, match=rf"{flag}: .* is not 1 to 64 of the letters"):
            resolve(kind, flags={flag.removeprefix("--"): word})
        resolve(kind, flags={flag.removeprefix("--"): "A-z_0.9" + "x" * 57})
