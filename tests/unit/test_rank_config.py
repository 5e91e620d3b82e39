"""What a leader tells its ranks: the operator's settings arrive where they hold."""

from pathlib import Path

from splash_core.config import GroupSettings
from splash_core.engine.loading import launch_config
from splash_core.ids import RankId
from splash_core.leader.build import draw_blueprint
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from splash_core.rpc.rank_config import RankConfig


def test_timeouts_of_the_settings_hold_in_the_ranks_collectives(tiny_v3: Path, tmp_path: Path) -> None:
    settings = GroupSettings(
        model=str(tiny_v3),
        kv_bytes=1 << 20,
        run_dir=str(tmp_path),
        start_timeout_s=1234.0,
        step_timeout_s=321.0,
    )

    def no_phase(*unused: object) -> object:
        raise AssertionError("the group is not run")

    group = GroupProcess(draw_blueprint(settings, Phase.PREFILL), no_phase)  # type: ignore[arg-type]
    group.rank_config("ipc://leader").write(tmp_path / "ranks.json")
    launch = launch_config(RankConfig.read(tmp_path / "ranks.json"), RankId(1))
    assert (launch.rank, launch.num_ranks) == (1, settings.ranks)
    assert (launch.join_timeout_s, launch.collective_timeout_s) == (1234.0, 321.0)
