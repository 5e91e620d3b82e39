"""A leader that ends takes its own socket with it, and never its successor's."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from splash_core.rpc.link import LeaderLink, ipc_address


@pytest.mark.parametrize("gone", [False, True])
def test_a_leader_s_end_leaves_its_successor_s_socket(gone: bool) -> None:
    async def lives(folder: Path) -> list[bool]:
        address, socket = ipc_address(folder), folder / "leader.sock"
        old = LeaderLink(address)
        if gone:
            socket.unlink()
        new = LeaderLink(address)
        old.close()
        seen = [socket.is_socket()]
        new.close()
        return [*seen, socket.exists()]

    # A short path, as sockets need it.
    with tempfile.TemporaryDirectory(prefix="l") as folder:
        assert asyncio.run(lives(Path(folder))) == [True, False]
