"""What a group's ranks as one thing do with messages that do not come, or cannot be read."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from splash_core.errors import GroupFailed
from splash_core.ids import RankId
from splash_core.leader.ranks import RankPool
from splash_core.pb import rank_pb2
from splash_core.rpc.link import LeaderLink
from splash_core.rpc.rank_config import RankConfig

RANK = RankId(0)


class Link:
    """A wire whose far end is the test."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []
        self.gone = False
        self.told: asyncio.Queue[rank_pb2.FromRank | Exception] = asyncio.Queue()

    async def send(self, rank: RankId, message: rank_pb2.ToRank) -> None:
        assert rank == RANK
        if self.gone:
            raise GroupFailed("it is not connected: Host unreachable")
        self.sent.append(message.WhichOneof("message"))

    async def receive(self) -> tuple[RankId, rank_pb2.FromRank]:
        message = await self.told.get()
        if isinstance(message, Exception):
            raise message
        return RANK, message


def _play(tmp_path: Path, scenario: Callable[[RankPool, Link], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        link = Link()
        config = cast("RankConfig", SimpleNamespace(num_ranks=1, group="prefill-0"))
        pool = RankPool(
            config, cast("LeaderLink", link), folder=tmp_path, on_loading=lambda done, total: None
        )
        pool.listen()
        await scenario(pool, link)
        await pool.stop()

    asyncio.run(main())


def _push(pool: RankPool) -> asyncio.Future[list[rank_pb2.PushResult]]:
    return asyncio.ensure_future(pool.push({RANK: rank_pb2.PushPages(push=7)}))


async def _turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def test_a_push_ends_with_its_report(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        push = _push(pool)
        await _turns()
        assert not push.done()
        await link.told.put(rank_pb2.FromRank(push=rank_pb2.PushResult(push=7, bytes=5)))
        assert [result.bytes for result in await push] == [5]
        assert pool.failure is None

    _play(tmp_path, scenario)


@pytest.mark.parametrize(
    "broken", [ValueError("no frame"), rank_pb2.FromRank(step=rank_pb2.StepResult(step=3))]
)
def test_a_message_that_cannot_be_read_fails_the_group_and_its_pushes(
    tmp_path: Path, broken: rank_pb2.FromRank | Exception
) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        push = _push(pool)
        await _turns()
        await link.told.put(broken)
        cause = "ValueError: no frame" if isinstance(broken, ValueError) else "step 3"
        assert cause in str(await pool.wait_failed())
        with pytest.raises(GroupFailed, match=cause):
            await push

    _play(tmp_path, scenario)


def test_a_death_is_the_cause_and_a_frame_that_was_not_taken_its_echo(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        link.gone = True
        push = _push(pool)
        await _turns()
        assert pool.failure is None
        pool.fail("rank 0 was killed by SIGKILL")
        with pytest.raises(GroupFailed, match="SIGKILL"):
            await push

    _play(tmp_path, scenario)


def test_a_frame_that_is_not_taken_fails_the_group_though_nobody_has_died(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        link.gone = True
        with pytest.raises(GroupFailed, match="rank 0: it is not connected"):
            await _push(pool)

    _play(tmp_path, scenario)


def test_a_fence_ends_with_the_last_rank_s_answer(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        fence = asyncio.ensure_future(pool.fence("w", term=2))
        again = asyncio.ensure_future(pool.fence("w", term=2))
        await _turns()
        assert link.sent == ["fence", "fence"]
        assert pool.fence_owed("w") == [RANK]
        # Of an earlier term, or another writer: no answer to this question.
        for writer, term in (("w", 1), ("v", 2)):
            await link.told.put(rank_pb2.FromRank(fenced=rank_pb2.FenceWriter(writer=writer, term=term)))
        await _turns()
        assert not fence.done()
        await link.told.put(rank_pb2.FromRank(fenced=rank_pb2.FenceWriter(writer="w", term=2)))
        await asyncio.gather(fence, again)
        assert pool.fence_owed("w") == []

    _play(tmp_path, scenario)


def test_a_fence_ends_when_the_group_fails(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        del link
        fence = asyncio.ensure_future(pool.fence("w", term=1))
        await _turns()
        pool.fail("rank 0 died")
        with pytest.raises(GroupFailed, match="rank 0 died"):
            await fence

    _play(tmp_path, scenario)


def test_pushes_end_when_the_ranks_are_stopped(tmp_path: Path) -> None:
    async def scenario(pool: RankPool, link: Link) -> None:
        push = _push(pool)
        await _turns()
        await pool.stop(grace_s=0.0)
        assert link.sent == ["push", "stop"]
        with pytest.raises(GroupFailed, match="group prefill-0 is being stopped"):
            await push
        with pytest.raises(GroupFailed, match="is being stopped"):
            await _push(pool)
        assert pool.failure is None

    _play(tmp_path, scenario)
