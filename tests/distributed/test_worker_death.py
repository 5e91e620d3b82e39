"""Background work of a rank that dies in an idle group ends the group, by name, before any deadline."""

import asyncio
from pathlib import Path

import pytest

from services.decode.servicer import DecodeService
from splash_core.config import GroupSettings
from splash_core.leader.build import draw_blueprint
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from tests.support import dying_rank

WITHIN_S = 120


def test_an_idle_rank_whose_copy_worker_dies_ends_its_group(
    tiny_v3: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = GroupSettings(
        model=str(tiny_v3),
        engine="fake",
        ranks=2,
        group="d",
        kv_bytes=1 << 20,
        page_size=4,
        run_dir=str(tmp_path),
        port=0,
    )
    process = GroupProcess(draw_blueprint(settings, Phase.DECODE), DecodeService, dying_rank.command)

    async def kill_when_ready() -> None:
        while not (tmp_path / "d.ready").exists():
            await asyncio.sleep(0.01)
        (tmp_path / "d" / dying_rank.SIGN).touch()

    async def main() -> int:
        killer = asyncio.create_task(kill_when_ready())
        code = await asyncio.wait_for(process.run(), WITHIN_S)
        await killer
        return code

    assert asyncio.run(main()) == 1
    told = "its copy worker of the shm transport has ended, which it cannot do without: Unavailable"
    assert any(f"group d failed: rank {rank}: {told}" in caplog.text for rank in range(2))
