"""A rank (`-m tests.support.dying_rank`) whose copy worker dies once a file is there, copying nothing."""

import os
import sys
from pathlib import Path

from splash_core.engine import rank_process
from splash_core.errors import Unavailable
from splash_core.ids import RankId
from splash_core.transport.shm import ShmTransport

SIGN = "die"


def command(rank: RankId, config: Path) -> list[str]:
    """Starts such a rank; it looks for the file next to its configuration."""
    return [
        sys.executable,
        "-m",
        "tests.support.dying_rank",
        "--config",
        str(config),
        "--rank",
        str(rank),
    ]


def main() -> int:
    """As the rank's own main."""
    sign, turn = Path(sys.argv[sys.argv.index("--config") + 1]).parent / SIGN, ShmTransport._turn

    def turn_or_die(transport: ShmTransport) -> bool:
        if os.path.exists(sign):
            raise Unavailable("the device has gone")
        return turn(transport)

    ShmTransport._turn = turn_or_die  # type: ignore[method-assign]
    return rank_process.main()


if __name__ == "__main__":
    sys.exit(main())
