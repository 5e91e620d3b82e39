"""The recorded rollout, simulated: the same requests on the same groups, timed by a profile.

Invariant: nothing of the measured arms enters but their requests and settings, so a profile predicts or it
does not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.bench.rollout_rows import Row, by_arm, simulated_row
from services.bench.workload import FIXED, POLICY
from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import HardwareProfile
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.leader.build import resolve_model
from splash_core.policy.document import parse_document
from splash_core.scheduling.roles import Role
from splash_core.simulate.comparison import WorkloadComparison, compare
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.policies import Policies
from splash_core.simulate.sizing import Shape, fleet_of_room
from splash_core.simulate.workload import Request, Workload
from splash_core.spec.model import ModelSpec

Document = Mapping[str, Any]
_APART_S = 0.001
"""Requests of one moment reach a router one after the other: the first prompt's step has no other in it."""


def with_simulation(
    document: Document, profile: HardwareProfile, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The document with a row for each simulated arm, in place of those of another profile.

    Raises:
        ConfigError: it is no document of this benchmark, or the profile is of another group.
    """
    if document.get("bench") != "rollout":
        raise ConfigError(f"bench is {document.get('bench')!r}; give a document of `splash bench rollout`")
    rows = [row for row in document["rows"] if row["what"] not in ("simulated", "profile")]
    recorded = next(row for row in rows if row["what"] == "workload")
    policies = Policies(document=parse_document(recorded["policy"], source="the document's policy"))
    fleet = fleet_of(document["settings"], profile, host_cores=recorded["cores"])
    found = compare(fleet, workload_of(recorded["requests"]), policies, progress=progress)
    return {**document, "rows": [*rows, _profile_row(profile), *_rows(found, rows)]}


def fleet_of(settings: Mapping[str, Any], profile: HardwareProfile, *, host_cores: int) -> Fleet:
    """The two groups of the measured stack: on CPUs they share the host's cores, GPUs are each rank's own."""
    device = settings.get("device", "cpu")  # earlier documents are all of CPUs, and do not say so
    profile.check_group(device=device, dtype=settings["dtype"], ranks=settings["ranks"])
    checkpoint = resolve_model(settings["model"])
    model = CostModel(
        spec=ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name),
        precision=named_precision(settings["dtype"]),
        profile=profile,
        num_ranks=settings["ranks"],
    )
    shape = Shape(
        groups={Role.PREFILL: 1, Role.DECODE: 1},
        chunk_tokens=settings["chunk_tokens"],
        max_running=settings["max_running"],
        # As `--graphs auto` has it.
        records_steps=device == "cuda",
        host_cores=host_cores if device == "cpu" else None,
        layouts=tuple(map(Layout, FIXED)),
    )
    return fleet_of_room(model, kv_bytes=settings["kv_bytes"], page_size=settings["page_size"], shape=shape)


def lengths_text(requests: Sequence[Request]) -> str:
    """Requests on one line of a document: `prompt:output`, with spaces between."""
    return " ".join(f"{request.prompt_tokens}:{request.output_tokens}" for request in requests)


def workload_of(text: str) -> Workload:
    """What `lengths_text` wrote."""
    pairs = [tuple(map(int, part.split(":"))) for part in text.split()]
    requests = tuple(
        Request(
            key=key, arrival_s=key * _APART_S, prompt_tokens=prompt, output_tokens=output, max_tokens=output
        )
        for key, (prompt, output) in enumerate(pairs)
    )
    return Workload(name="rl-rollout", requests=requests)


def _rows(found: WorkloadComparison, rows: Sequence[Row]) -> list[dict[str, Any]]:
    spans = by_arm(rows)
    summaries = {layout.value: summary for layout, summary in found.fixed.items()} | {POLICY: found.policy}
    return [simulated_row(arm, summaries[arm].to_json(), spans[arm]) for arm in spans if arm in summaries]


def _profile_row(profile: HardwareProfile) -> dict[str, Any]:
    provenance = profile.provenance
    return {
        "what": "profile",
        "name": profile.name,
        "source": provenance.source,
        "date": provenance.date,
        "commit": provenance.commit,
        "note": provenance.note,
    }
