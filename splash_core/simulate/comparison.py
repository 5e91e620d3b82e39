"""One workload under the policy, under every fixed layout and under an oracle; regret; the JSON of all that.

regret = makespan of the policy / makespan of the oracle - 1. The oracle's is the least of three kinds of
runs: every fixed layout, the policy, and `pilots.Oracle`, which knows all lengths and switches for nothing.
It is a strong opponent, not a proven bound: the greedy run does not know who will come.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from splash_core.cost.measured_on import doubt
from splash_core.errors import Infeasible
from splash_core.layout.layout import Layout
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Course
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import TOO_LONG, Ledger, percentile
from splash_core.simulate.pilots import Fixed, Oracle, Policy
from splash_core.simulate.policies import Policies
from splash_core.simulate.workload import Workload

_SHARES = {"p50": 0.5, "p99": 0.99}
_START = {Role.PREFILL: Layout.TP, Role.DECODE: Layout.DP, Role.COMBINED: Layout.DP}
"""As services start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What counts as good service."""

    ttft_s: float = 2.0
    itl_s: float = 0.1
    """Mean gap between a request's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of one run."""

    ledger: Ledger
    objectives: Objectives

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token."""
        finished = self.ledger.finished
        if not finished:
            return 0.0
        return max(times.finished_s for times in finished) - min(times.arrived_s for times in finished)

    @property
    def mean_latency_s(self) -> float:
        """Of a request, arrival to last token."""
        finished = self.ledger.finished
        return sum(times.latency_s for times in finished) / max(len(finished), 1)

    def to_json(self) -> dict[str, Any]:
        """The figures, seconds with six digits."""
        ledger, finished, span = self.ledger, self.ledger.finished, self.makespan_s
        ttft = [times.ttft_s for times in finished]
        good = [
            times
            for times in finished
            if times.ttft_s <= self.objectives.ttft_s and times.mean_gap_s <= self.objectives.itl_s
        ]
        return {
            "makespan_s": round(span, 6),
            "tokens_per_s": round(_rate(sum(times.output_tokens for times in finished), span), 3),
            "prompt_tokens_per_s": round(_rate(sum(times.prompt_tokens for times in finished), span), 3),
            "ttft_s": {name: round(percentile(ttft, share), 6) for name, share in _SHARES.items()},
            "itl_s": {name: round(ledger.gap_percentile(share), 6) for name, share in _SHARES.items()},
            "mean_latency_s": round(self.mean_latency_s, 6),
            "goodput": {
                "requests_per_s": round(_rate(len(good), span), 3),
                "share": round(len(good) / max(len(finished), 1), 4),
            },
            "finished": len(finished),
            "refused": dict(ledger.refused),
            "steps": sum(ledger.steps.values()),
            "steps_by_layout": {layout.value: steps for layout, steps in sorted(ledger.steps.items())},
            "switches": len(ledger.switches),
            "switches_by_executor": dict(Counter(switch.mode.value for switch in ledger.switches)),
            "exposed_s": round(sum(switch.exposed_s for switch in ledger.switches), 6),
            "ahead_s": round(sum(switch.ahead_s for switch in ledger.switches), 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadComparison:
    """All runs of one workload."""

    workload: str
    fleet: Fleet
    objectives: Objectives
    policy: Summary
    fixed: Mapping[Layout, Summary]
    oracle: Summary
    warnings: tuple[str, ...] = ()
    """What the policy document says and no group heeds."""

    @property
    def regret(self) -> float:
        """By how much longer the policy takes than the oracle, relative."""
        return _ratio(self.policy.makespan_s, self.oracle.makespan_s)

    def against(self, layout: Layout) -> float:
        """By how much longer the policy takes than a fixed layout, relative; negative: it is faster."""
        return _ratio(self.policy.makespan_s, self.fixed[layout].makespan_s)

    def to_json(self) -> dict[str, Any]:
        """In the shape of `splash simulate --json`."""
        fleet = self.fleet
        fixed: dict[str, Any] = {}
        for layout, summary in self.fixed.items():
            fixed[layout.value] = {**summary.to_json(), "regret": round(self.against(layout), 6)}
        for layout, reason in fleet.infeasible.items():
            fixed[layout.value] = {"infeasible": reason}
        return {
            "workload": self.workload,
            "policy": self.policy.to_json(),
            "fixed": fixed,
            "oracle": self.oracle.to_json(),
            "regret": round(self.regret, 6),
            "regret_latency": round(_ratio(self.policy.mean_latency_s, self.oracle.mean_latency_s), 6),
            "warnings": list(self.warnings),
            "objectives": {"ttft_s": self.objectives.ttft_s, "itl_s": self.objectives.itl_s},
            "fleet": {
                "model": fleet.model.spec.name,
                "profile": fleet.model.profile.name,
                "source": fleet.model.profile.provenance.source,
                "doubt": doubt(fleet.model.profile, fleet.model.spec),
                "ranks_per_group": fleet.model.num_ranks,
                "ranks": fleet.num_ranks,
                "groups": {role.value: count for role, count in fleet.groups.items() if count},
            },
        }


def compare(
    fleet: Fleet,
    workload: Workload,
    policies: Policies,
    *,
    objectives: Objectives | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> WorkloadComparison:
    """Run a workload in every way.

    Args:
        fleet: the deployment.
        workload: what is asked of it.
        policies: what the groups' policies say; what is said of decode steers combined groups.
        objectives: what counts as good service.
        progress: told the name of each run before it begins.

    Raises:
        Infeasible: the policy's run serves no request, as all are too long: there is nothing to compare.
    """
    objectives = objectives or Objectives()

    def run(name: str, course: Course, what: Workload) -> Summary:
        progress(name)
        return Summary(ledger=Cluster(fleet, course).run(what), objectives=objectives)

    policy = run("policy", policy_course(fleet, policies), workload)
    if policy.ledger.refused[TOO_LONG] and not policy.ledger.finished:
        raise _none_served(fleet, workload)
    fixed = {layout: run(layout.value, fixed_course(layout), workload) for layout in fleet.capacities}
    free = run("oracle", oracle_course(fleet, policies), workload.foreseen())
    oracle = min((policy, free, *fixed.values()), key=lambda summary: summary.makespan_s)
    return WorkloadComparison(
        workload=workload.name,
        fleet=fleet,
        objectives=objectives,
        policy=policy,
        fixed=fixed,
        oracle=oracle,
        warnings=policies.warnings(fleet),
    )


def _none_served(fleet: Fleet, workload: Workload) -> Infeasible:
    longest = max(request.prompt_tokens + request.max_tokens for request in workload.requests)
    positions = fleet.model.spec.max_positions
    by_model = fleet.longest_request >= positions
    bound = f"{fleet.model.spec.name} has {positions:,} positions"
    room = f"a group holds {fleet.longest_request:,} of one request"
    more = "" if by_model else ", or more room (--kv-bytes, --fraction, --ranks)"
    return Infeasible(
        f"none of the {len(workload.requests)} requests of {workload.name} is served: the longest has "
        f"{longest:,} tokens, prompt and output, and {bound if by_model else room}",
        nearest=f"shorter requests (--lengths){more}",
    )


def policy_course(fleet: Fleet, policies: Policies) -> Course:
    """Groups that follow their policy, from where services start."""
    return Course(
        start=_starts(fleet),
        pilot=lambda role, name: Policy(fleet.model, policies.of(fleet, role, name)),
    )


def oracle_course(fleet: Fleet, policies: Policies) -> Course:
    """Groups that an oracle moves."""
    return Course(
        start=_starts(fleet),
        pilot=lambda role, name: Oracle(fleet.model, policies.of(fleet, role, name)),
    )


def fixed_course(layout: Layout) -> Course:
    """Groups that stay in one layout, in both phases."""
    return Course(start=dict.fromkeys(Role, layout), pilot=lambda _role, _name: Fixed())


def _starts(fleet: Fleet) -> dict[Role, Layout]:
    first = next(iter(fleet.capacities))
    return {role: layout if layout in fleet.capacities else first for role, layout in _START.items()}


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _ratio(mine: float, theirs: float) -> float:
    return mine / theirs - 1 if theirs > 0 else math.inf if mine > 0 else 0.0
