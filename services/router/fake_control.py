"""What fake groups tell of themselves and what they count; see `fake_backend`."""

from dataclasses import dataclass, field

import grpc.aio

from splash_core.errors import Blocked, Conflict, SplashError
from splash_core.pb import common_pb2, control_pb2, control_pb2_grpc, decode_pb2
from splash_core.rpc.errors import abort


@dataclass(slots=True, kw_only=True)
class CallCounts:
    """What the groups hold now, and how often they were called."""

    prefills_running: int = 0
    decodes_running: int = 0
    prefill_calls: int = 0
    decode_calls: int = 0
    cancelled: int = 0
    requests: list[decode_pb2.DecodeRequest] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Calls that hold something."""
        return self.prefills_running + self.decodes_running


@dataclass(slots=True, kw_only=True)
class FakeGroup:
    """One group's identity, load and limits, as its Control service tells them."""

    phase: str
    group: str
    layout: str = "TP"
    layout_epoch: int = 0
    state: str = "ready"
    max_model_len: int = 1024
    max_request_tokens: int = 1024
    """What its pool holds of one request."""
    kv_tokens_total: int = 65536
    kv_tokens_projected: int = 0
    incarnation: str = "1"
    abi: common_pb2.KvAbi = field(default_factory=lambda: common_pb2.KvAbi(version="1", dtype="fp32"))
    waiting: int = 0
    step_age_s: float = 0.0
    refused: frozenset[str] = frozenset({"CP"})
    """Layouts that a switch to is refused."""
    pinned: str = ""
    holds: list[float | None] = field(default_factory=list)
    """`hold_s` of each switch asked for; None where it was left out."""
    drained: bool = False
    policy: control_pb2.PolicyState = field(default_factory=control_pb2.PolicyState)
    policies: list[control_pb2.SetPolicyRequest] = field(default_factory=list)
    """Versions that it was handed."""
    policy_error: SplashError | None = None
    """Instead of taking one."""
    totals: control_pb2.StepTotals = field(default_factory=control_pb2.StepTotals)
    kept: dict[str, str] = field(default_factory=dict[str, str])
    """Texts of the router's."""


class FakeControl(control_pb2_grpc.ControlServicer):
    """Control service of one fake group."""

    def __init__(self, group: FakeGroup, counts: CallCounts) -> None:
        self._group = group
        self._counts = counts

    async def Describe(
        self, request: control_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupDescription:
        """Identity and limits."""
        del request, context
        group = self._group
        return control_pb2.GroupDescription(
            group=group.group,
            phase=group.phase,
            incarnation=group.incarnation,
            abi=group.abi,
            max_model_len=group.max_model_len,
            max_request_tokens=group.max_request_tokens,
            layouts=[
                control_pb2.LayoutFeasibility(
                    layout="TP", feasible=True, distinct_tokens=group.kv_tokens_total
                ),
                control_pb2.LayoutFeasibility(layout="CP", feasible=False, reason="not in this fake"),
            ],
            model="fake",
        )

    async def GetState(
        self, request: control_pb2.StateRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupState:
        """The load that the counts tell."""
        del request, context
        group, counts = self._group, self._counts
        running = {"prefill": counts.prefills_running, "decode": counts.decodes_running}[group.phase]
        return control_pb2.GroupState(
            group=group.group,
            phase=group.phase,
            state=group.state,
            layout=group.layout,
            layout_epoch=group.layout_epoch,
            incarnation=group.incarnation,
            ranks=2,
            running=running,
            waiting=group.waiting,
            kv_tokens_total=group.kv_tokens_total,
            kv_tokens_projected=group.kv_tokens_projected,
            step_age_s=group.step_age_s,
            policy=group.policy,
            totals=group.totals,
        )

    async def SetLayout(
        self, request: control_pb2.SetLayoutRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.SetLayoutResult:
        """Switch at once; CP is refused with numbers, and a pin bars all others."""
        group = self._group
        group.holds.append(request.hold_s if request.HasField("hold_s") else None)
        if group.pinned not in ("", request.layout):
            await abort(context, Blocked(f"the group is pinned to {group.pinned}; unpin it first"))
        if request.layout in group.refused:
            await abort(
                context,
                Conflict(f"{request.layout} is refused: 12 pages in borrowed slots, 3 ordinary slots free"),
            )
        before, moved = group.layout, request.layout != group.layout
        group.layout = request.layout
        group.layout_epoch += int(moved)
        return control_pb2.SetLayoutResult(
            group=group.group,
            from_layout=before,
            to_layout=group.layout,
            layout_epoch=group.layout_epoch,
            mode=request.mode or "overlapped",
            bytes=4096 if moved else 0,
        )

    async def Pin(
        self, request: control_pb2.PinRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.PinResult:
        """Go there and stay there, as leaders do."""
        del context
        group = self._group
        group.pinned = group.policy.pinned = request.layout
        if request.layout not in ("", group.layout):
            group.layout = request.layout
            group.layout_epoch += 1
        return control_pb2.PinResult(group=group.group, pinned=request.layout)

    async def SetPolicy(
        self, request: control_pb2.SetPolicyRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.SetPolicyResult:
        """Take every higher version, or refuse every one."""
        group = self._group
        group.policies.append(request)
        if group.policy_error is not None:
            await abort(context, group.policy_error)
        if request.version < group.policy.version:
            await abort(context, Conflict(f"policy version {group.policy.version} is in force"))
        group.policy = control_pb2.PolicyState(
            version=request.version, digest=request.digest, trying=request.trying, pinned=group.pinned
        )
        return control_pb2.SetPolicyResult(group=group.group, policy=group.policy)

    async def Keep(
        self, request: control_pb2.KeepRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.KeepResult:
        """As leaders do."""
        del context
        self._group.kept[request.name] = request.text
        return control_pb2.KeepResult()

    async def GetKept(
        self, request: control_pb2.KeptRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.KeptResult:
        """As leaders do."""
        del context
        return control_pb2.KeptResult(text=self._group.kept.get(request.name, ""))

    async def Decisions(
        self, request: control_pb2.DecisionsRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.DecisionsResult:
        """One made-up record."""
        del request, context
        record = f'{{"time": 1.0, "phase": "{self._group.phase}", "group": "{self._group.group}"}}'
        return control_pb2.DecisionsResult(records=[record])

    async def Bundle(
        self, request: control_pb2.BundleRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.BundleResult:
        """A bundle of nothing."""
        del request, context
        return control_pb2.BundleResult(group=self._group.group, phase=self._group.phase, bundle="{}")

    async def Audit(
        self, request: control_pb2.AuditRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupAudit:
        """What the counts say is held."""
        del request, context
        group, held = self._group, self._counts.held
        rank = control_pb2.RankAudit(rank=0, slots=8, free=8 - held, kv=held)
        return control_pb2.GroupAudit(
            group=group.group, phase=group.phase, layout=group.layout, ranks=[rank], pages_held=held
        )

    async def Drain(
        self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.DrainResult:
        """Report an empty group."""
        del request, context
        self._group.state, self._group.drained = "draining", True
        return control_pb2.DrainResult(drained=True, left=0)
