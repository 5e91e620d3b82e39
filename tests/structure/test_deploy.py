"""Deployment files name commands and flags that exist, and the router's image can do without torch."""

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.cli import COMMANDS
from splash_core.config import GroupSettings, RouterSettings
from splash_core.transport.mooncake_library import FLAVOURS, SYSTEM_PACKAGES, VERSION

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
MODULES = {"grpcio": "grpc", "protobuf": "google.protobuf", "pyzmq": "zmq"}
SETTINGS = {"router": RouterSettings, "prefill": GroupSettings, "decode": GroupSettings}


def flags_of(kind: type) -> set[str]:
    """The command line's flags for a settings class."""
    return {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


@pytest.mark.parametrize("service", sorted(SETTINGS))
def test_images_start_existing_commands_with_existing_flags(service: str) -> None:
    text = (DOCKER / f"{service}.Dockerfile").read_text()
    entry = re.search(r"ENTRYPOINT \[(.*)\]", text)
    assert entry is not None
    words = re.findall(r'"([^"]*)"', entry.group(1))
    assert words[:2] == ["splash", service]
    assert words[1] in COMMANDS
    assert {word for word in words if word.startswith("--")} <= flags_of(SETTINGS[service])


def test_pod_passes_existing_flags() -> None:
    text = (ROOT / "deploy" / "k8s" / "base" / "pod.yaml").read_text()
    for service, kind in SETTINGS.items():
        part = text.split(f"- name: {service}\n")[1].split("volumeMounts")[0]
        given = set(re.findall(r"(--[a-z-]+)=", part))
        assert given
        assert given <= flags_of(kind)


def test_everything_in_the_base_exists_and_only_the_gateway_is_open() -> None:
    base = ROOT / "deploy" / "k8s" / "base"
    listed = re.findall(r"^  - (\S+)$", (base / "kustomization.yaml").read_text(), re.MULTILINE)
    assert {"pod.yaml", "service.yaml", "network-policy.yaml"} == set(listed)
    assert all((base / name).is_file() for name in listed)
    policy = (base / "network-policy.yaml").read_text()
    assert re.findall(r"port: (\w+)", policy) == ["http"]


def test_advice_for_groups_in_pods_of_their_own_names_existing_flags() -> None:
    text = (ROOT / "deploy" / "README.md").read_text()
    given = set(re.findall(r"(--transport[a-z-]*|--advertise|--host)\b", text))
    assert {"--transport", "--transport-host", "--transport-ports"} <= given
    assert given <= flags_of(GroupSettings)


@pytest.mark.parametrize("service", ["prefill", "decode"])
def test_images_of_groups_have_what_mooncake_needs(service: str) -> None:
    text = (DOCKER / f"{service}.Dockerfile").read_text()
    libraries = SYSTEM_PACKAGES.rpartition("-y ")[2]
    assert libraries in text
    assert ".[mooncake]" in text
    for file in ("Makefile", ".ci/run", "README.md"):
        assert all(name in (ROOT / file).read_text() for name in libraries.split())


def test_one_version_of_mooncake_in_every_flavour() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {line.partition(";")[0] for name in extras for line in extras[name] if "mooncake" in line}
    assert wanted == {f"{flavour}=={VERSION}" for flavour in FLAVOURS}


def names(lines: list[str]) -> set[str]:
    """Distribution names of requirement lines."""
    found = (re.match(r"[A-Za-z0-9_-]+", line) for line in lines)
    return {match.group(0).lower() for match in found if match is not None}


def test_router_runs_on_its_image_s_requirements_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = names((DOCKER / "router-requirements.txt").read_text().splitlines())
    assert listed < names(project["dependencies"])
    absent = {MODULES.get(name, name) for name in names(project["dependencies"]) - listed}
    assert {"torch", "transformers", "zmq"} <= absent
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import services.commands.router"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
