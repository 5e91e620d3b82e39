"""Policy versions and step totals on the wire."""

from dataclasses import asdict, fields

from splash_core.layout.layout import Layout
from splash_core.pb import control_pb2
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.step_totals import StepTotals


def policy_to_pb(policy: PolicyInForce, *, pinned: Layout | None) -> control_pb2.PolicyState:
    """What a group decides by."""
    return control_pb2.PolicyState(
        version=policy.number,
        digest=policy.digest,
        trying=policy.trying,
        pinned=pinned.value if pinned is not None else "",
    )


def totals_to_pb(totals: StepTotals) -> control_pb2.StepTotals:
    """For a report."""
    return control_pb2.StepTotals(**asdict(totals))


def totals_from_pb(message: control_pb2.StepTotals) -> StepTotals:
    """Of a report."""
    return StepTotals(**{item.name: getattr(message, item.name) for item in fields(StepTotals)})
