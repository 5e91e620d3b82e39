"""What `splash bench rollout` does: measure and simulate, or simulate what was measured; document out."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.bench.document import BenchDocument, fresh_path, keep_each, read_earlier
from services.bench.results_page import section
from services.bench.rollout_settings import RolloutSettings
from services.progress import progress_console, stages
from splash_core.errors import ConfigError


def rollout(settings: RolloutSettings, as_json: bool) -> int:  # noqa: FBT001
    """A rollout of 64 requests in every fixed layout and under the policy, interleaved; and simulated.

    With --profile, what `splash calibrate` wrote on this machine, the policy predicts with it, and the same
    requests are simulated with it beside. --simulate FILE simulates an earlier document again, and
    leaves it as it is; the new one goes to --out.

    Example: `splash bench rollout --profile profile.json --out docs/results`
    """
    # Imported here: `splash bench --help` needs none of it.
    from services.bench.rollout_simulated import with_simulation
    from splash_core.leader.profile_file import read_profile

    if settings.simulate and not settings.profile:
        raise ConfigError("--simulate needs --profile: the file that `splash calibrate` wrote")
    profile = read_profile(Path(settings.profile)) if settings.profile else None
    with stages(progress_console(), "bench rollout") as progress:
        path, document = _earlier(settings) if settings.simulate else _measured(settings, progress)
        if profile is not None:
            document = with_simulation(document, profile, progress)
            _write(path, document)
    sys.stdout.write(json.dumps(document) + "\n" if as_json else section(document))
    return 0


def _earlier(settings: RolloutSettings) -> tuple[Path | None, Mapping[str, Any]]:
    """An earlier document, and where it goes: into `--out`, or nowhere. The file itself stays as it is."""
    document = read_earlier(
        Path(settings.simulate), flag="--simulate", bench="rollout", command="splash bench rollout"
    )
    if not settings.out:
        return None, document
    return fresh_path(Path(settings.out), BenchDocument(**document), settings.label), document


def _measured(
    settings: RolloutSettings, progress: Callable[[str], None]
) -> tuple[Path | None, Mapping[str, Any]]:
    """The document, and where it lies."""
    from services.bench.rollout import measure

    return keep_each(measure(settings, progress), out=settings.out, label=settings.label)


def _write(path: Path | None, document: Mapping[str, Any]) -> None:
    if path is not None:
        BenchDocument(**document).write_to(path)
