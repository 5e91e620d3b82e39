"""A router that cannot do a part of its work any more ends with an error that names the part."""

import asyncio
from pathlib import Path

import pytest

from services.router import main
from services.router.config import RouterConfig
from services.router.correctness_watch import ProbeWatch
from services.router.policy_file import PolicyFile
from services.router.policy_service import PolicyService
from services.router.registry import Registry
from splash_core.obs.vitals import Died
from tests.support.scripted_router import write_tokenizer

WITHIN_S = 60


async def die(*_: object, **__: object) -> None:
    raise ValueError("broken")


async def end(*_: object, **__: object) -> None:
    """Returns at once."""


def serve(folder: Path, **settings: object) -> None:
    config = RouterConfig(
        model=write_tokenizer(folder / "m"),
        prefill=("127.0.0.1:1",),
        decode=("127.0.0.1:2",),
        port=0,
        admin_port=0,
        drain_hold_s=0.0,
        probe_every_s=1.0,
        **settings,  # type: ignore[arg-type]
    )

    async def run() -> None:
        await asyncio.wait_for(main.serve(config, stop=asyncio.Event()), WITHIN_S)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "part", "name"),
    [
        (Registry, "_poll", r"poll of 127\.0\.0\.1:1"),
        (PolicyService, "_follow", "look after the policy"),
        (ProbeWatch, "_follow", "probes"),
        (main._Server, "serve", "gateway"),
    ],
)
def test_a_part_that_dies_ends_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, part: str, name: str
) -> None:
    monkeypatch.setattr(owner, part, die)
    with pytest.raises(Died, match=f"its {name} has ended, .*: ValueError: broken"):
        serve(tmp_path)


def test_a_gateway_that_returns_unasked_ends_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main._Server, "serve", end)
    with pytest.raises(Died, match=r"its gateway has ended, .*: it returned unasked"):
        serve(tmp_path)


def test_a_policy_file_that_is_watched_no_more_ends_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[all]\nenabled = true\n")
    monkeypatch.setattr(PolicyFile, "watch", die)
    with pytest.raises(Died, match=f"its watch of {path} has ended"):
        serve(tmp_path, policy=str(path))
