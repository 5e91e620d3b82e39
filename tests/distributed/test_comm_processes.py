"""Communicators between real processes: conformance, launch, and the death of a peer."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from splash_core.dist.comm import RankComms, Transfer
from splash_core.dist.gloo import GlooComm
from splash_core.dist.launch import Backend, LaunchConfig, rank_comms
from splash_core.dist.shm import ShmComm
from splash_core.errors import ConfigError, GroupFailed
from splash_core.ids import RankId
from tests.distributed.harness import RankFailed, RankPool
from tests.support.comm_cases import Script, assert_matches, run_script, scripts


@pytest.fixture(
    scope="module", params=[(Backend.GLOO, 2), (Backend.GLOO, 4), (Backend.SHM, 2), (Backend.AUTO, 4)]
)
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    backend, num_ranks = request.param
    with RankPool(num_ranks, tmp_path_factory.mktemp("ranks"), backend=backend) as ranks:
        yield ranks


def run_on_both(comms: RankComms, script: Script) -> list[Tensor]:
    results = run_script(comms.compute, script)
    again = run_script(comms.transfer, script)
    assert all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
    return results


def which(comms: RankComms) -> str:
    return type(comms.compute).__name__


def fail_on(comms: RankComms, rank: int) -> None:
    if comms.compute.rank == rank:
        raise KeyError(f"lost on {rank}")
    comms.compute.barrier()


def move_much(comms: RankComms, num_bytes: int) -> int:
    """A background switch beside small steps; the bytes that arrived wrong."""
    size = comms.compute.size
    peer = RankId((comms.compute.rank + 1) % size)
    source = RankId((comms.compute.rank - 1) % size)
    landed_B = torch.zeros(num_bytes, dtype=torch.uint8)

    def switch() -> None:
        sent_B = torch.full((num_bytes,), 7 + comms.compute.rank, dtype=torch.uint8)
        comms.transfer.exchange([Transfer(peer, sent_B)], [Transfer(source, landed_B)], tag="switch")

    background = threading.Thread(target=switch)
    background.start()
    for _ in range(50):
        total = comms.compute.all_gather_rows(torch.ones(1), [1] * size, tag="step").sum()
        assert total == size
    background.join()
    return int((landed_B != 7 + source).sum())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_programs_match_the_reference(pool: RankPool, data: st.DataObject) -> None:
    script = data.draw(scripts(len(pool.pids), big_rows=40_000, max_calls=4))
    assert_matches(script, pool.run(run_on_both, script))


def test_the_backend_is_what_was_asked_for(pool: RankPool, request: pytest.FixtureRequest) -> None:
    backend, num_ranks = request.node.callspec.params["pool"]
    names = {Backend.GLOO: GlooComm.__name__, Backend.SHM: ShmComm.__name__, Backend.AUTO: ShmComm.__name__}
    assert pool.run(which) == [names[backend]] * num_ranks


def test_a_large_switch_runs_beside_steps(pool: RankPool) -> None:
    assert set(pool.run(move_much, 3_000_001)) == {0}


def test_a_failure_is_raised_here_and_the_next_run_works(tmp_path: Path) -> None:
    with RankPool(2, tmp_path, backend=Backend.SHM) as ranks:
        with pytest.raises(KeyError, match="lost on 1") as caught:
            ranks.run(fail_on, 1)
        assert "on rank 1 of" in caught.value.__notes__[0]
        assert ranks.run(which) == [ShmComm.__name__] * 2


def wait_for_peer(comms: RankComms, folder: str) -> str:
    """Rank 0 waits for rank 1, which says that it sleeps and never comes."""
    if comms.compute.rank == 1:
        Path(folder, "asleep").touch()
        time.sleep(600)
    began = time.monotonic()
    try:
        comms.compute.barrier()
    except GroupFailed as error:
        Path(folder, "told").write_text(f"{time.monotonic() - began} {error}")
    return "over"


@pytest.mark.parametrize("backend", [Backend.SHM, Backend.GLOO])
def test_the_death_of_a_peer_is_an_error_within_seconds(backend: Backend, tmp_path: Path) -> None:
    with RankPool(2, tmp_path, backend=backend) as ranks:
        victim = ranks.pids[1]

        def kill_when_asleep() -> None:
            while not (tmp_path / "asleep").exists():
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_asleep)
        killer.start()
        with pytest.raises(RankFailed):
            ranks.run(wait_for_peer, str(tmp_path))
        killer.join()
    told = (tmp_path / "told").read_text()
    assert float(told.split()[0]) < 20
    assert "rank 0" in told


def _config(meeting: str, **changes: object) -> LaunchConfig:
    fields: dict = {"rank": RankId(0), "num_ranks": 2, "rendezvous": meeting, "join_timeout_s": 0.3}
    return LaunchConfig(**{**fields, **changes})


def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(GroupFailed, match=r"for ranks \[1\] of 2; are their processes running"),
        rank_comms(_config(f"file://{tmp_path}/meet")),
    ):
        pass


def test_a_missing_rank_0_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with (
        pytest.raises(GroupFailed, match="cannot reach rank 0"),
        rank_comms(_config(f"tcp://127.0.0.1:{port}", rank=RankId(1), join_timeout_s=1.0)),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rendezvous": "http://here"}, "must be file"),
        ({"rendezvous": "file:///no/such/folder/meet"}, "does not exist"),
        ({"device": torch.device("cuda")}, "sees no GPU"),
        ({"device": torch.device("meta")}, "use cpu or cuda"),
        ({"backend": Backend.NCCL, "num_ranks": 1}, "nccl needs all ranks on cuda"),
        ({"rank": RankId(2)}, "not in a group of 2"),
    ],
)
def test_unusable_settings_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=message),
        rank_comms(_config(f"file://{tmp_path}/meet", **changes)),
    ):
        pass


def test_one_rank_needs_no_peer_and_no_copies(tmp_path: Path) -> None:
    x_NX = torch.ones(3, 2)
    for backend in (Backend.SHM, Backend.GLOO):
        config = _config(f"file://{tmp_path}/{backend}", num_ranks=1, backend=backend)
        with rank_comms(config) as comms:
            assert comms.compute.all_gather_rows(x_NX, [3], tag="gather") is x_NX
            assert comms.transfer.reduce_scatter_rows(x_NX, [3], tag="reduce") is x_NX
            landed = torch.zeros(3, 2)
            comms.transfer.exchange([Transfer(RankId(0), x_NX)], [Transfer(RankId(0), landed)], tag="self")
            assert torch.equal(landed, x_NX)
    assert not (tmp_path / Backend.SHM).exists()
