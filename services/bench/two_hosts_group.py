"""A worker group with ranks on chosen hosts of `two_hosts`: `python -m services.bench.two_hosts_group FILE`.

Its leader runs where it is started. Everything else is as in `splash prefill` and `splash decode`.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.bench.two_hosts import Host
from services.decode.servicer import DecodeService
from services.prefill.servicer import PrefillService
from services.standalone import prepare
from splash_core.config import GroupSettings
from splash_core.ids import RankId
from splash_core.leader.build import draw_blueprint
from splash_core.leader.rank_child import rank_command
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from splash_core.rpc.rank_config import RankConfig

_PHASES = {Phase.PREFILL: PrefillService, Phase.DECODE: DecodeService}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGroup:
    """A group, and the host of each of its ranks."""

    phase: Phase
    settings: GroupSettings
    hosts: Sequence[Host]

    def write(self, path: Path) -> None:
        """Store for `read`."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "PlacedGroup":
        """What `write` stored."""
        raw = json.loads(path.read_text())
        return cls(
            phase=Phase(raw["phase"]),
            settings=GroupSettings(**raw["settings"]),
            hosts=[Host(**host) for host in raw["hosts"]],
        )

    def command(self, rank: RankId, config: Path) -> list[str]:
        """Starts a rank on its host, which its transport listens on."""
        host, common = self.hosts[rank], RankConfig.read(config)
        own = config.with_name(f"rank-{rank}.json")
        transport = dataclasses.replace(common.transport, bind=host.address, host=host.address)
        dataclasses.replace(common, transport=transport).write(own)
        return [*host.command, *rank_command(rank, own)]


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="One worker group with ranks on two hosts.")
    parser.add_argument("group", type=Path)
    parser.add_argument("--parent-pid", type=int, required=True)
    arguments = parser.parse_args()
    placed = PlacedGroup.read(arguments.group)
    settings = dataclasses.replace(placed.settings, parent_pid=arguments.parent_pid)
    settings = prepare(settings, settings.group)
    process = GroupProcess(draw_blueprint(settings, placed.phase), _PHASES[placed.phase], placed.command)
    return asyncio.run(process.run())


if __name__ == "__main__":
    sys.exit(main())
