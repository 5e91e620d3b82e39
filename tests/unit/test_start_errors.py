"""What cannot start says why in a sentence and with the right exit code, before any process is started."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services import run_folders
from services.children import Death
from services.cli import main
from services.commands.router import router_config
from services.launch import Stack, StackFailed, StartInterrupted
from services.listening import check_free, free_port, listen, url_of
from services.run_folders import prune, run_folder
from splash_core.config import RouterSettings, UpSettings
from splash_core.errors import ConfigError, Infeasible, SplashError

ELSEWHERE = "192.0.2.1"
"""An address for documentation: no host has it."""


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def splash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Splash":
    monkeypatch.setattr("services.commands.up.signal.signal", lambda number, handler: None)
    return Splash(monkeypatch, capsys)


class Splash:
    """The command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str]:
        """Exit code, and all that was printed."""
        self._monkeypatch.setattr("sys.argv", ["splash", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out + shown.err


def test_what_is_listened_on_is_refused_with_the_flag(taken: int) -> None:
    for call in (listen, check_free):
        with pytest.raises(
            ConfigError,
            match=rf"--admin-port {taken}: cannot listen on \S+:{taken} \(Address already in use\);",
        ):
            call("127.0.0.1", taken, flag="--admin-port")


@pytest.mark.parametrize("host", [ELSEWHERE, "no.such.host.invalid", "a" * 70, "::zz"])
def test_a_host_that_is_not_this_one_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="choose another host"):
        free_port(host)


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    assert free_port(taken=port) != port
    listen("127.0.0.1", port, flag="--port").close()


def test_urls_of_both_families() -> None:
    assert (url_of("127.0.0.1", 1), url_of("::1", 2)) == ("http://127.0.0.1:1", "http://[::1]:2")


def test_run_folders_are_new_ones_or_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = run_folder(""), run_folder("")
    assert first != second
    assert {first.parent, second.parent} == {tmp_path / "splash"}
    named = tmp_path / "a" / "b"
    assert run_folder(str(named)) == run_folder(str(named)) == named
    with pytest.raises(ConfigError, match="set --run-dir"):
        run_folder("/dev/null/x")
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        run_folder("")


def test_folders_of_ended_runs_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "_has_ended", lambda name: name.endswith(("-7", "-7-1")))
    names = [f"2026010{day}-000000-7{copy}" for day in range(1, 5) for copy in ("", "-1")]
    others = ["20250101-000000-8", "models", "20250101-7"]
    for name in (*names, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "router.log").touch()
    (tmp_path / "20250101-000000-7").touch()
    prune(tmp_path, keep=3)
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left >= {*others} - {"20250101-7"}
    assert left & {*names} == {*names[-3:]}


def test_only_runs_of_processes_that_have_ended_are_deleted(tmp_path: Path) -> None:
    living, ended = tmp_path / "20250101-000000-1", tmp_path / "20250101-000000-999999999"
    for path in (living, ended, tmp_path / "models"):
        path.mkdir()
    prune(tmp_path, keep=0)
    assert {path.name for path in tmp_path.iterdir()} == {living.name, "models"}


def _stack(model: Path, tmp_path: Path, **settings: object) -> Stack:
    fields: dict[str, object] = {
        "model": str(model),
        "port": 0,
        "admin_port": 0,
        "run_dir": str(tmp_path / "run"),
        "page_size": 8,
        "kv_bytes": 1 << 19,
        **settings,
    }
    return Stack(UpSettings(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            {"decode_ranks": 3, "decode_layout": "TP"},
            Infeasible,
            ("--decode-layout TP", "--decode-layout CP"),
        ),
        ({"prefill_ranks": 3, "prefill_layout": "TP"}, Infeasible, ("--prefill-layout TP",)),
        ({"prefill_ranks": 0}, ConfigError, ("--prefill-ranks", "at least 1")),
        ({"layouts": "XP"}, SplashError, ("layouts 'XP'",)),
        ({"host": ELSEWHERE, "port": 8000}, ConfigError, ("--port 8000", "cannot listen")),
    ],
)
def test_errors_name_the_flags_of_up(
    tiny_v3: Path,
    tmp_path: Path,
    settings: dict[str, object],
    error: type[SplashError],
    words: tuple[str, ...],
) -> None:
    stack = _stack(tiny_v3, tmp_path, **settings)
    with pytest.raises(error) as raised:
        stack.start()
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert "--layout " not in str(raised.value)
    assert stack.pids == {}


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_a_checkpoint_that_lacks_a_file_is_refused_before_anything_starts(
    tiny_v3: Path, tmp_path: Path, missing: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in tiny_v3.iterdir():
        if path.name != missing:
            (model / path.name).symlink_to(path)
    stack = _stack(model, tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer.json is missing|has no weights"):
        stack.start()
    assert stack.pids == {}


def test_an_interrupt_while_settings_are_checked_starts_nothing(tiny_v3: Path, tmp_path: Path) -> None:
    stack, interrupted = _stack(tiny_v3, tmp_path), threading.Event()
    interrupted.set()
    with pytest.raises(StartInterrupted):
        stack.start(interrupted=interrupted)
    assert stack.pids == {}


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stack = _stack(tmp_path / "no-such", tmp_path, run_dir="")
    with pytest.raises(ConfigError, match="no-such"):
        stack.start()
    assert list((tmp_path / "splash").iterdir()) == []


def test_one_port_cannot_serve_two_things(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are both 8123"):
        _stack(tmp_path, tmp_path, port=8123, admin_port=8123)


@pytest.mark.parametrize(("code", "refused"), [(1, False), (2, True), (3, True), (-9, False)])
def test_a_child_that_refuses_its_settings_is_told_from_one_that_fails(code: int, refused: bool) -> None:
    death = Death(name="router", pid=1, code=code, log=Path("log"), lines=("error: why",))
    assert StackFailed(death, Path("run")).refused is refused


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("up", "--port", "99999"), 2, "at most 65,535"),
        (("up", "--host", ELSEWHERE, "--port", "0"), 2, "cannot listen"),
        (("up", "--port", "8123", "--admin-port", "8123"), 2, "are both 8123"),
        (("up", "--run-dir", "/dev/null/x"), 2, "set --run-dir"),
        (("up", "--config", "/"), 2, "directory"),
        (("decode", "--advertise", "zz"), 2, "'zz' is not HOST:PORT"),
        (("decode", "--run-dir", "/dev/null/x"), 2, "set --run-dir"),
        (("router", "--prefill", "a:1"), 2, "--decode is required"),
        (("router", "--decode", "a:1", "--prefill", ""), 2, "--prefill is required"),
        (("router", "--decode", "a:1,b", "--prefill", "a:1"), 2, "'a:1,b' is not a list of HOST:PORT"),
        (("router", "--decode", "a:1,", "--prefill", "a:1"), 2, "is not a list of HOST:PORT"),
        (("router", "--decode", "a:0", "--prefill", "a:1"), 2, "is not a list of HOST:PORT"),
        (("model", "tiny", "/dev/null/x"), 2, "name a folder where you may write"),
    ],
)
def test_exit_codes_and_sentences(
    splash: Splash, tiny_v3: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    model = () if arguments[0] == "model" else ("--model", tiny_v3)
    ended, text = splash(*arguments, *model)
    assert (ended, "Traceback" in text) == (code, False), text
    assert words in text
    assert text.count("error") == 1


def test_an_existing_folder_is_not_overwritten(splash: Splash, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    code, text = splash("model", "tiny", tmp_path)
    assert code == 2
    assert "not an empty folder" in text
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_broken_tokenizer_is_the_operators_error(tiny_v3: Path, tmp_path: Path) -> None:
    from services.router.tokenizer import Tokenizer

    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    for name in ("tokenizer_config.json", "config.json"):
        (tmp_path / "tokenizer.json").write_bytes((tiny_v3 / "tokenizer.json").read_bytes())
        (tmp_path / name).write_text("{")
        with pytest.raises(ConfigError, match=name):
            Tokenizer.load(tmp_path)
        (tmp_path / name).unlink()


def test_the_router_knows_its_checkpoint(tiny_v3: Path) -> None:
    config = router_config(RouterSettings(model=str(tiny_v3), prefill="a:1", decode="unix:/b"))
    assert (config.prefill, config.decode) == (("a:1",), ("unix:/b",))
    assert len(config.fingerprint) == 33
