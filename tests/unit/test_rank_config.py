"""What a leader tells its ranks: the operator's settings arrive where they hold."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.decode.main import serve as serve_decode
from services.launch import Stack
from services.prefill.main import serve as serve_prefill
from splash_core.config import GroupSettings, UpSettings
from splash_core.engine.loading import launch_config
from splash_core.errors import ConfigError
from splash_core.ids import RankId
from splash_core.leader.build import draw_blueprint
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from splash_core.rpc.rank_config import RankConfig


def _told(checkpoint: Path, run_dir: Path, **changes: Any) -> RankConfig:
    """What the ranks of a group with these settings are told."""
    settings = GroupSettings(model=str(checkpoint), kv_bytes=1 << 20, run_dir=str(run_dir), **changes)

    def no_phase(*unused: object) -> object:
        raise AssertionError("the group is not run")

    group = GroupProcess(draw_blueprint(settings, Phase.PREFILL), no_phase)  # type: ignore[arg-type]
    group.rank_config("ipc://leader").write(run_dir / "ranks.json")
    return RankConfig.read(run_dir / "ranks.json")


def test_timeouts_of_the_settings_hold_in_the_ranks_collectives(tiny_v3: Path, tmp_path: Path) -> None:
    config = _told(tiny_v3, tmp_path, start_timeout_s=1234.0, step_timeout_s=321.0)
    launch = launch_config(config, RankId(1))
    assert (launch.rank, launch.num_ranks) == (1, config.num_ranks)
    assert (launch.join_timeout_s, launch.collective_timeout_s) == (1234.0, 321.0)
    assert launch.device == torch.device("cpu")


def test_on_cuda_each_rank_has_the_gpu_of_its_number(tiny_v3: Path, tmp_path: Path) -> None:
    config = _told(tiny_v3, tmp_path, device="cuda", transfer_max_ctas=8, switch_layers_ahead=3)
    assert config.dtype == "bf16"
    assert config.switch_layers_ahead == 3
    launch = launch_config(config, RankId(1))
    assert launch.device == torch.device("cuda", 1)
    assert launch.transfer_max_ctas == 8


def test_ranks_have_the_gpus_that_are_named(tiny_v3: Path, tmp_path: Path) -> None:
    config = _told(tiny_v3, tmp_path, device="cuda", gpus="5,3")
    assert [launch_config(config, RankId(rank)).device.index for rank in range(2)] == [5, 3]
    assert config.transport.memory == "cuda"


@pytest.mark.parametrize(
    ("settings", "chunk_bytes"),
    [
        ({}, 1 << 20),
        ({"device": "cuda"}, 16 << 20),
        ({"device": "cuda", "link_chunk_bytes": 1000}, 1000),
    ],
)
def test_pieces_between_gpus_are_larger(
    tiny_v3: Path, tmp_path: Path, settings: dict[str, Any], chunk_bytes: int
) -> None:
    assert _told(tiny_v3, tmp_path, **settings).link_limits.chunk_bytes == chunk_bytes


@pytest.mark.parametrize("serve", [serve_prefill, serve_decode])
def test_gpus_that_mooncake_cannot_reach_are_refused(serve: Any, tiny_v3: Path) -> None:
    with pytest.raises(ConfigError, match=r"reaches host memory only.*use --transport shm.*or --device cpu"):
        serve(GroupSettings(model=str(tiny_v3), device="cuda", transport="mooncake"))


def test_a_stack_on_gpus_that_mooncake_cannot_reach_is_refused_before_anything_starts(
    tiny_v3: Path, tmp_path: Path
) -> None:
    settings = UpSettings(
        model=str(tiny_v3), device="cuda", transport="mooncake", run_dir=str(tmp_path / "run")
    )
    stack = Stack(settings)
    with pytest.raises(ConfigError, match="reaches host memory only"):
        stack.start()
    assert stack.pids == {}


def test_random_weights_need_no_files_and_their_seed_reaches_the_ranks(bare: Path, tmp_path: Path) -> None:
    assert _told(bare, tmp_path, load_format="dummy", dummy_seed=7).dummy_seed == 7
    with pytest.raises(ConfigError, match=r"has no weights.*--load-format dummy"):
        _told(bare, tmp_path)
