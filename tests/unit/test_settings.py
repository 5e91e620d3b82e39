"""Settings: where values come from, what is refused, and that flags reproduce a settings object."""

import dataclasses
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from services.options import settings_command
from splash_core.config import (
    LAYOUTS,
    STANDARD_LAYOUTS,
    AdminSettings,
    GroupSettings,
    RouterSettings,
    UpSettings,
    admin_key,
    resolve,
)
from splash_core.environment import cache_home, child_environment, state_home
from splash_core.errors import ConfigError
from splash_core.layout import layout
from splash_core.layout.layout import Layout
from splash_core.policy.config import load_document
from splash_core.settings_base import as_flags, checked, parse_size, reference


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "splash.toml"
    file.write_text('ranks = 4\npage-size = 32\nmodel = "from-file"\nport = 7\nadmin_port = 9\n')
    settings = resolve(
        GroupSettings,
        flags={"ranks": "8", "model": None},
        config=file,
        environ={"SPLASH_RANKS": "6", "SPLASH_PAGE_SIZE": "16"},
    )
    assert (settings.ranks, settings.page_size, settings.model, settings.port) == (8, 16, "from-file", 7)
    assert settings.chunk_tokens == 512


def test_settings_for_child_processes_do_not_come_from_the_environment() -> None:
    settings = resolve(GroupSettings, flags={}, environ={"SPLASH_PARENT_PID": "1", "SPLASH_ENGINE": "fake"})
    assert (settings.parent_pid, settings.engine) == (0, "torch")


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        ({"ranks": "two"}, {}, ("--ranks", "'two'", "not a number")),
        ({}, {"SPLASH_STEP_TIMEOUT_S": "soon"}, ("SPLASH_STEP_TIMEOUT_S", "'soon'")),
        ({"layout": "XP"}, {}, ("--layout", "TP, CP, DP, DOP")),
        ({"transport": "nixl"}, {}, ("nixl", "shm, mooncake")),
        ({"transport_ports": "200-100"}, {}, ("200-100", "range of ports")),
        ({"device": "tpu"}, {}, ("tpu", "cpu")),
    ],
)
def test_bad_values_name_their_source_and_the_remedy(
    flags: dict[str, object], environ: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(GroupSettings, flags=flags, environ=environ)
    assert all(word in str(raised.value) for word in words)


def test_children_keep_nvlink_multicast_off_unless_the_operator_turns_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST"):
        monkeypatch.delenv(name, raising=False)
    environ = child_environment(num_threads=3)
    assert (environ["NCCL_NVLS_ENABLE"], environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"]) == ("0", "1")
    assert environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    assert child_environment()["NCCL_NVLS_ENABLE"] == "1"


def test_a_registry_url_that_is_not_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="only memory is served"):
        resolve(UpSettings, flags={"registry": "redis://host:6379"}, environ={})


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        resolve(UpSettings, flags={}, config=tmp_path / "none.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("ranks = = 4")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve(UpSettings, flags={}, config=broken, environ={})
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("page_size = [1]")
    with pytest.raises(ConfigError, match=r"page_size in .*must be of type int"):
        resolve(UpSettings, flags={}, config=wrong, environ={})


@pytest.mark.parametrize(
    ("text", "value"), [("64", 64), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1.5K", 1536), (" 8KB", 8192)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("kind", [GroupSettings, RouterSettings, UpSettings])
def test_flags_reproduce_a_settings_object_in_a_child(kind: type) -> None:
    settings = resolve(kind, flags={"model": "m", "port": "17"}, environ={"SPLASH_LOG_FORMAT": "plain"})
    seen: list[object] = []
    app = typer.Typer()

    @settings_command(app, "child", kind)
    def child(got: object, as_json: bool) -> int:
        """A child process."""
        seen.extend([got, as_json])
        return 5

    result = CliRunner().invoke(app, [*as_flags(settings), "--json"])
    assert result.exit_code == 5, result.output
    assert seen == [settings, True]


def test_every_visible_setting_is_documented_once() -> None:
    lines = reference(GroupSettings, UpSettings).splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert len(names) == len(set(names))
    assert {"ranks", "prefill_ranks", "kv_bytes"} <= set(names)
    assert "parent_pid" not in names


def test_the_admin_key_comes_from_environment_or_file_and_never_from_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    settings = AdminSettings(admin_key_file=str(file))
    assert admin_key(settings, environ={}) == "from-file"
    assert admin_key(settings, environ={"SPLASH_ADMIN_KEY": "from-env"}) == "from-env"
    assert admin_key(AdminSettings(), environ={}) == ""
    with pytest.raises(ConfigError, match="no-such"):
        admin_key(AdminSettings(admin_key_file=str(tmp_path / "no-such")), environ={})
    assert [flag for flag in as_flags(settings) if flag.startswith("--")] == ["--admin", "--admin-key-file"]


def test_state_and_cache_folders_follow_xdg(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "s"), "XDG_CACHE_HOME": str(tmp_path / "c")}
    assert state_home(environ) == tmp_path / "s" / "splash"
    assert cache_home(environ) == tmp_path / "c" / "splash"


def test_settings_name_every_layout_and_no_other() -> None:
    assert tuple(Layout) == LAYOUTS
    assert layout.STANDARD_LAYOUTS == STANDARD_LAYOUTS


KINDS = (GroupSettings, RouterSettings, UpSettings)
NUMBERS = sorted(
    {
        (kind, field.name)
        for kind in KINDS
        for field in dataclasses.fields(kind)
        if isinstance(field.default, int | float) and not field.metadata["hidden"]
    },
    key=lambda entry: (entry[0].__name__, entry[1]),
)


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "-5G", "1e400", "1e999G"])
def test_no_number_may_be_negative_infinite_or_no_number(kind: type, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}: "):
        resolve(kind, flags={name: value}, environ={})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "99999"}, "at least 0, at most 65,535"),
        ({"admin_port": "65536"}, "at most 65,535"),
        ({"step_timeout_s": "0"}, "above 0, at most 1,000,000"),
        ({"drain_timeout_s": "1e300"}, "at most 1,000,000"),
        ({"admission_overcommit": "0.5"}, "at least 1"),
        ({"page_size": "0"}, "at least 1"),
        ({"decode_ranks": "0"}, "at least 1"),
    ],
)
def test_a_number_out_of_range_is_told_the_range(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(UpSettings, flags=flags, environ={})


def test_every_default_is_in_its_range() -> None:
    for kind, name in NUMBERS:
        field = next(field for field in dataclasses.fields(kind) if field.name == name)
        assert checked(field.default, field, name) == field.default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 5", "unknown setting 'prot'; is port meant"),
        ("kv-byte = 5", "unknown setting 'kv-byte'; is kv_bytes meant"),
        ("zzzzzz = 5", "unknown setting 'zzzzzz'; see docs/settings.md"),
        ("[decode]\nranks = 2", r"no sections, but the file has \[decode\]"),
        ("kv-bytes = 1\nkv_bytes = 2", "kv_bytes is given twice"),
        ('port = "many"', "port in .*'many' is not a number"),
        ("port = true", "port in .*True must be of type int"),
        ("step_timeout_s = nan", "step_timeout_s in .*nan is out of range"),
        ("ranks = 0", "ranks in .*0 is out of range"),
        ('model = "a\\u0000b"', "model in .*NUL"),
    ],
)
def test_whatever_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "splash.toml"
    file.write_text(text)
    # The flag wins, and `ranks` belongs to another command; the file is wrong all the same.
    with pytest.raises(ConfigError, match=words) as raised:
        resolve(UpSettings, flags={"port": "1"}, config=file, environ={})
    assert str(file) in str(raised.value)


def test_commands_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "splash.toml"
    file.write_text('model = "m"\nranks = 3\ndecode_ranks = 4\nprefill = "a:1"\nadmin = "http://x"\n')
    assert resolve(GroupSettings, flags={}, config=file, environ={}).ranks == 3
    assert resolve(UpSettings, flags={}, config=file, environ={}).decode_ranks == 4
    assert resolve(RouterSettings, flags={}, config=file, environ={}).prefill == "a:1"
    assert resolve(AdminSettings, flags={}, config=file, environ={}).admin == "http://x"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        resolve(UpSettings, flags={}, config=tmp_path, environ={})
    file = tmp_path / "latin1.toml"
    file.write_bytes(b'model = "caf\xe9"')
    with pytest.raises(ConfigError, match=r"not UTF-8 \(byte 12\)"):
        resolve(UpSettings, flags={}, config=file, environ={})
    with pytest.raises(ConfigError, match="key file"):
        admin_key(AdminSettings(admin_key_file=str(file)), environ={})
    with pytest.raises(ConfigError, match="policy file"):
        load_document(str(file))
