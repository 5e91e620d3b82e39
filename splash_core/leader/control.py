"""The Control service of one group: what a router and an operator may ask and order."""

import asyncio
import json
import logging
import os

import grpc.aio

from splash_core.errors import ConfigError, Conflict, InvalidRequest, SplashError, Unavailable
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, Layout
from splash_core.leader.audits import audit_to_pb
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.kept import KeptTexts
from splash_core.leader.leader import GroupCondition, GroupLeader
from splash_core.leader.names import parse_layout, parse_mode
from splash_core.leader.steering import SwitchOutcome
from splash_core.obs.lifeline import ProcessRef
from splash_core.pb import control_pb2, control_pb2_grpc, rank_pb2
from splash_core.policy.bundle import bundle_of
from splash_core.policy.document import parse_document
from splash_core.policy.in_force import PolicyInForce, why_not
from splash_core.rpc.abi import abi_to_pb
from splash_core.rpc.codec import process_to_pb
from splash_core.rpc.errors import abort
from splash_core.rpc.policy import policy_to_pb, totals_to_pb
from splash_core.rpc.traffic import samples_to_pb
from splash_core.scheduling.sequence import SeqState

_log = logging.getLogger("splash.leader")
_SWITCH_TIMEOUT_S = 90.0
_BOUNDARY_TIMEOUT_S = 30.0


class ControlServicer(control_pb2_grpc.ControlServicer):
    """Answers for one group."""

    def __init__(self, blueprint: GroupBlueprint, leader: GroupLeader) -> None:
        self._blueprint = blueprint
        self._leader = leader
        self._ranks: tuple[rank_pb2.RankReady, ...] = ()
        self._kept = KeptTexts()

    def ranks_ready(self, ranks: tuple[rank_pb2.RankReady, ...]) -> None:
        """The ranks are up; from now on the group can be described."""
        self._ranks = ranks

    async def Describe(
        self, request: control_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupDescription:
        """What does not change during an incarnation."""
        del request
        if not self._ranks:
            await abort(context, Unavailable(f"group {self._blueprint.group} is starting"))
        blueprint = self._blueprint
        return control_pb2.GroupDescription(
            group=blueprint.group,
            phase=blueprint.phase.value,
            incarnation=blueprint.incarnation,
            abi=abi_to_pb(blueprint.abi),
            ranks=[rank.address for rank in self._ranks],
            max_model_len=blueprint.max_model_len,
            max_request_tokens=self._leader.scheduler.max_request_tokens,
            layouts=[self._feasibility(layout) for layout in blueprint.shown_layouts],
            model=blueprint.model_name,
            leader=process_to_pb(ProcessRef.of(os.getpid())),
            sign_within_s=blueprint.sign_within_s,
        )

    def _feasibility(self, layout: Layout) -> control_pb2.LayoutFeasibility:
        reason = self._blueprint.refusal(layout)
        return control_pb2.LayoutFeasibility(
            layout=layout.value,
            feasible=not reason,
            reason=reason,
            distinct_tokens=0
            if reason
            else Capacity.of(self._blueprint.arena, RULES[layout]).distinct_tokens,
        )

    async def GetState(
        self, request: control_pb2.StateRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupState:
        """Load and liveness now."""
        del request, context
        leader, scheduler = self._leader, self._leader.scheduler
        tokens = scheduler.kv_tokens()
        waiting = scheduler.count(SeqState.WAITING)
        return control_pb2.GroupState(
            group=self._blueprint.group,
            phase=self._blueprint.phase.value,
            state=leader.condition.value,
            layout=scheduler.layout.value,
            layout_epoch=scheduler.epoch,
            incarnation=self._blueprint.incarnation,
            ranks=self._blueprint.settings.ranks,
            steps=scheduler.num_steps,
            running=scheduler.count() - waiting,
            waiting=waiting + leader.queue_length,
            kv_tokens_used=tokens.used,
            kv_tokens_total=tokens.total,
            kv_tokens_projected=tokens.projected,
            step_age_s=leader.step_age_s,
            failure=str(leader.failure or ""),
            traffic=samples_to_pb(leader.ranks.traffic.samples()),
            policy=policy_to_pb(leader.steering.policy, pinned=leader.steering.pinned),
            totals=totals_to_pb(leader.step_totals),
            forecasts=[
                control_pb2.LayoutForecast(
                    layout=layout.value,
                    steps=seen.steps,
                    predicted_s=seen.predicted_s,
                    measured_s=seen.measured_s,
                    ratio=seen.ratio,
                    drifting=leader.steering.forecasts.drifting(layout),
                )
                for layout, seen in leader.steering.forecasts.layouts.items()
            ],
        )

    async def SetLayout(
        self, request: control_pb2.SetLayoutRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.SetLayoutResult:
        """Switch, and answer when it is done."""
        try:
            outcome = await self._set_layout(request)
        except SplashError as error:
            await abort(context, error)
            raise
        return control_pb2.SetLayoutResult(
            group=self._blueprint.group,
            from_layout=outcome.layout_from.value,
            to_layout=outcome.layout_to.value,
            layout_epoch=outcome.epoch,
            mode=outcome.mode,
            exposed_ms=outcome.exposed_ms,
            bytes=outcome.bytes_received,
            precopied_bytes=outcome.precopied_bytes,
            fallback=outcome.fallback,
        )

    async def _set_layout(self, request: control_pb2.SetLayoutRequest) -> SwitchOutcome:
        leader = self._leader
        if leader.failure is not None:
            raise leader.failure
        if leader.condition is GroupCondition.STARTING:
            raise Unavailable("the group is starting; try again when it is ready")
        layout = parse_layout(request.layout)
        mode = parse_mode(request.mode)
        hold_s = request.hold_s if request.HasField("hold_s") else None
        answer = leader.steering.set_layout(layout, mode, hold_s=hold_s)
        leader.wake()
        try:
            async with asyncio.timeout(_SWITCH_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise Unavailable(f"the switch to {layout} was not done within {_SWITCH_TIMEOUT_S:g} s") from None

    async def Pin(
        self, request: control_pb2.PinRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.PinResult:
        """Hold a layout until unpinned (an empty layout)."""
        layout: Layout | None = None
        if request.layout:
            try:
                layout = parse_layout(request.layout)
                if reason := self._blueprint.refusal(layout):
                    raise Conflict(f"layout {layout} is not feasible: {reason}")
            except SplashError as error:
                await abort(context, error)
        self._leader.steering.pin(layout)
        self._leader.wake()
        # After an unpin the policy's own pin may hold.
        pinned = self._leader.steering.pinned
        return control_pb2.PinResult(group=self._blueprint.group, pinned=pinned.value if pinned else "")

    async def SetPolicy(
        self, request: control_pb2.SetPolicyRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.SetPolicyResult:
        """Take a version of the policy document, whole or not at all; answers when it is in force."""
        try:
            await self._set_policy(request)
        except SplashError as error:
            await abort(context, error)
            raise
        steering = self._leader.steering
        _log.info("policy version %d (%s) is in force", steering.policy.number, steering.policy.digest)
        told = policy_to_pb(steering.policy, pinned=steering.pinned)
        return control_pb2.SetPolicyResult(group=self._blueprint.group, policy=told)

    async def _set_policy(self, request: control_pb2.SetPolicyRequest) -> None:
        leader, blueprint = self._leader, self._blueprint
        if leader.failure is not None:
            raise leader.failure
        if leader.condition is GroupCondition.STARTING:
            raise Unavailable("the group is starting; try again when it is ready")
        try:
            document = parse_document(request.document, source=f"policy version {request.version}")
        except ConfigError as error:
            raise InvalidRequest(str(error), param="document") from error
        if document.digest != request.digest:
            raise InvalidRequest(
                f"policy version {request.version}: {blueprint.group} reads it as {document.digest}, not as "
                f"{request.digest}; give router and groups the same version of Splash",
                param="digest",
            )
        offered = blueprint.scheduling.layouts
        if reason := why_not(document, phase=blueprint.phase, group=blueprint.group, offered=offered):
            raise InvalidRequest(f"policy version {request.version}: {reason}", param="document")
        answer = leader.steering.set_policy(
            PolicyInForce(
                phase=blueprint.phase,
                group=blueprint.group,
                document=document,
                number=request.version,
                digest=request.digest,
                trying=request.trying,
            )
        )
        leader.wake()
        try:
            async with asyncio.timeout(_BOUNDARY_TIMEOUT_S):
                await asyncio.shield(answer)
        except TimeoutError:
            raise Unavailable(f"no step has ended within {_BOUNDARY_TIMEOUT_S:g} s") from None

    async def Keep(
        self, request: control_pb2.KeepRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.KeepResult:
        """Keep a text of the router's for as long as this leader lives."""
        try:
            self._kept.keep(request.name, request.text)
        except SplashError as error:
            await abort(context, error)
        return control_pb2.KeepResult()

    async def GetKept(
        self, request: control_pb2.KeptRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.KeptResult:
        """What is kept under a name."""
        del context
        return control_pb2.KeptResult(text=self._kept.get(request.name))

    async def Decisions(
        self, request: control_pb2.DecisionsRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.DecisionsResult:
        """The newest decision records."""
        del context
        records = self._leader.steering.decisions(request.last)
        return control_pb2.DecisionsResult(records=[json.dumps(record.to_json()) for record in records])

    async def Bundle(
        self, request: control_pb2.BundleRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.BundleResult:
        """What the policy saw and concluded, to be replayed."""
        del context
        recorder = self._leader.steering.recorder
        newest = recorder.newest(request.last or None)
        # Of many requests it is long: beside the loop, which has steps to plan.
        text = await asyncio.to_thread(lambda: json.dumps(bundle_of(recorder.model, newest)))
        return control_pb2.BundleResult(
            group=self._blueprint.group, phase=self._blueprint.phase.value, bundle=text
        )

    async def Audit(
        self, request: control_pb2.AuditRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupAudit:
        """Every slot, lease and push; every page where asked for."""
        del context
        audit = self._leader.scheduler.audit(every_page=request.pages)
        return audit_to_pb(audit, self._leader.waits(), phase=self._blueprint.phase.value)

    async def Drain(
        self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.DrainResult:
        """Refuse new requests, finish those running, then answer."""
        del context
        given = request.HasField("deadline_s")
        deadline_s = request.deadline_s if given else self._blueprint.settings.drain_timeout_s
        left = await self._leader.drain(deadline_s)
        return control_pb2.DrainResult(drained=left == 0, left=left)
