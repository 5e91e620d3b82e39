"""The admin port: what the groups are doing, and the operator's hand on them.

Invariant: an answer is what the leaders said, never a guess; a group that cannot be asked makes it an error,
or is named in it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from services.router.audits import audit_report
from services.router.config import RouterConfig
from services.router.correctness_admin import ProbeAdmin
from services.router.dispatch import Dispatcher
from services.router.errors import error_response
from services.router.gateway import unknown_url
from services.router.http import check_key, check_query, read_json
from services.router.policy_admin import PolicyAdmin
from services.router.records import GroupRecord
from services.router.registry import Registry
from services.router.running import RunningAnswers
from services.router.schemas import DrainBody, LayoutBody, PinBody, read
from services.router.weights import why_out
from splash_core.errors import InvalidRequest, NotFound, SplashError
from splash_core.pb import control_pb2
from splash_core.policy.snapshot import Phase
from splash_core.rpc.abi import abi_from_pb

_CONSOLE = Path(__file__).with_name("console.html")

Handler = Callable[[Request], Awaitable[Response]]

_ASKED: Mapping[str, Sequence[str]] = {
    "/admin/decisions": ("last", "phase"),
    "/admin/decisions/bundle": ("last", "phase"),
    "/admin/audit": ("pages",),
    "/admin/policy/diff": ("from", "to"),
}
"""Parameters of queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The endpoints and what they stand on."""

    config: RouterConfig
    registry: Registry
    dispatcher: Dispatcher
    policy: PolicyAdmin
    probes: ProbeAdmin
    answers: RunningAnswers

    def app(self) -> Starlette:
        """The ASGI application."""
        get = {
            "/admin/cluster": self.cluster,
            "/admin/layouts": self.layouts,
            "/admin/decisions": self.decisions,
            "/admin/decisions/bundle": self.bundle,
            "/admin/audit": self.audit,
            "/admin/canary": self.probes.get,
            "/admin/policy": self.policy.get,
            "/admin/policy/versions": self.policy.versions,
            "/admin/policy/versions/{number}": self.policy.version,
            "/admin/policy/diff": self.policy.diff,
            "/admin/requests/{name}/timeline": self.timeline,
        }
        post = {
            "/admin/layout": self.set_layout,
            "/admin/pin": self.pin,
            "/admin/unpin": self.unpin,
            "/admin/layout/pin": self.pin,
            "/admin/layout/unpin": self.unpin,
            "/admin/policy/rollback": self.policy.rollback,
            "/admin/canary/reset": self.probes.reset,
            "/admin/drain": self.drain,
        }
        routes = [Route(path, self._guarded(handler, _ASKED.get(path, ()))) for path, handler in get.items()]
        routes += [Route(path, self._guarded(handler), methods=["POST"]) for path, handler in post.items()]
        put = self._guarded(self.policy.put, ("expected", "dry_run"))
        routes.append(Route("/admin/policy", put, methods=["PUT"]))
        routes.append(Route("/", self.console))
        return Starlette(routes=routes, exception_handlers={HTTPException: unknown_url})

    async def cluster(self, _: Request) -> Response:
        """`GET /admin/cluster`: every group's newest state."""
        alarm_of, records = self.probes.watch.alarm_of, self.registry.records()
        return JSONResponse(
            {
                "groups": [
                    cluster_entry(record)
                    | {"cause": why_out(record, records), "canary_alarm": alarm_of(record.label)}
                    for record in records
                ]
            }
        )

    async def layouts(self, _: Request) -> Response:
        """`GET /admin/layouts`: which layouts each group can take, or why not."""
        return JSONResponse({"groups": [layouts_entry(record) for record in self.registry.records()]})

    async def decisions(self, request: Request) -> Response:
        """`GET /admin/decisions?last=N&phase=P`: the newest records of all groups, and of canaries."""
        last, phase = _last(request), _phase(request)
        records = self.registry.records(phase)
        workers = [self.registry.workers[record.address] for record in records]
        answers = await asyncio.gather(*(worker.decisions(last=last) for worker in workers))
        found = [json.loads(text) for answer in answers for text in answer.records]
        found += self.policy.service.canary.records(phase) + self.probes.watch.decisions(phase)
        found.sort(key=lambda record: record.get("time", 0))
        return JSONResponse(found[-last:])

    async def bundle(self, request: Request) -> Response:
        """`GET /admin/decisions/bundle?last=N&phase=P`: what each group's policy saw and concluded."""
        last, records = _last(request), self.registry.records(_phase(request))
        workers = [self.registry.workers[record.address] for record in records]
        answers = await asyncio.gather(*(worker.bundle(last=last) for worker in workers))
        return JSONResponse(
            {
                "groups": [
                    {"group": answer.group, "phase": answer.phase, "bundle": json.loads(answer.bundle)}
                    for answer in answers
                ]
            }
        )

    async def audit(self, request: Request) -> Response:
        """`GET /admin/audit?pages=1`: every slot, lease and push of every group, and every page."""
        asked = request.query_params.get("pages", "0")
        if asked not in ("0", "1"):
            raise InvalidRequest(f"pages must be 0 or 1, got {asked!r}", param="pages")
        records, workers = self.registry.records(), self.registry.workers
        return JSONResponse(await audit_report(records, workers, pages=asked == "1"))

    async def timeline(self, request: Request) -> Response:
        """`GET /admin/requests/ID/timeline`: where the time of a request's sequences went."""
        name = request.path_params["name"]
        found = [
            line.to_json()
            for line in self.dispatcher.timelines
            if line.request_id == name or line.request_id.rpartition("-")[0] == name
        ]
        if not found:
            raise NotFound(f"request {name!r} is not among the newest; check the id", param="id")
        return JSONResponse({"request": name, "sequences": found})

    async def set_layout(self, request: Request) -> Response:
        """`POST /admin/layout`: switch a group; answers after the switch."""
        body = read(LayoutBody, await read_json(request, max_bytes=self.config.max_body_bytes))
        _, worker = self.registry.find(body.phase, body.group)
        result = await worker.set_layout(
            control_pb2.SetLayoutRequest(layout=body.layout, mode=body.mode or "", hold_s=body.hold_s)
        )
        self.registry.suspect(worker.address)
        return JSONResponse(
            {
                "group": result.group,
                "from": result.from_layout,
                "to": result.to_layout,
                "layout_epoch": result.layout_epoch,
                "mode": result.mode,
                "exposed_ms": result.exposed_ms,
                "bytes": result.bytes,
                "precopied_bytes": result.precopied_bytes,
                "fallback": result.fallback or None,
            }
        )

    async def pin(self, request: Request) -> Response:
        """`POST /admin/pin`: hold a layout until unpinned; without a layout, unpin."""
        body = read(PinBody, await read_json(request, max_bytes=self.config.max_body_bytes))
        return await self._pin(body, layout=body.layout or "")

    async def unpin(self, request: Request) -> Response:
        """`POST /admin/unpin`: let the policy choose again."""
        body = read(PinBody, await read_json(request, max_bytes=self.config.max_body_bytes))
        return await self._pin(body, layout="")

    async def drain(self, request: Request) -> Response:
        """`POST /admin/drain`: refuse new requests, finish those running, in router and groups."""
        raw = await read_json(request, max_bytes=self.config.max_body_bytes) if await request.body() else {}
        deadline_s = read(DrainBody, raw).deadline_s
        deadline_s = self.config.drain_timeout_s if deadline_s is None else deadline_s
        self.dispatcher.draining = True
        idle = await self.dispatcher.wait_idle(timeout_s=deadline_s)
        workers = self.registry.workers.values()
        results = await asyncio.gather(*(worker.drain(deadline_s=deadline_s) for worker in workers))
        return JSONResponse(
            {
                "drained": idle and all(result.drained for result in results),
                "left": self.dispatcher.running + sum(result.left for result in results),
            }
        )

    async def console(self, _: Request) -> Response:
        """`GET /`: a page that shows the cluster."""
        return HTMLResponse(_CONSOLE.read_text())

    async def _pin(self, body: PinBody, *, layout: str) -> Response:
        _, worker = self.registry.find(body.phase, body.group)
        result = await worker.pin(control_pb2.PinRequest(layout=layout))
        return JSONResponse({"group": result.group, "pinned": result.pinned or None})

    def _guarded(self, handler: Handler, asked: Sequence[str] = ()) -> Handler:
        """With the key checked; `asked` are the parameters that a query may have."""

        async def endpoint(request: Request) -> Response:
            try:
                check_key(request, self.config.admin_key)
                check_query(request, asked)
                async with self.answers.within(None):
                    return await handler(request)
            except SplashError as error:
                return error_response(error)

        return endpoint


def _phase(request: Request) -> str | None:
    phase = request.query_params.get("phase")
    if phase is not None and phase not in list(Phase):
        raise InvalidRequest(f"phase must be {' or '.join(Phase)}, got {phase!r}", param="phase")
    return phase


def _last(request: Request) -> int:
    last = request.query_params.get("last", "20")
    if not last.isdecimal() or not 1 <= int(last) <= 10_000:
        raise InvalidRequest(f"last must be 1 to 10000, got {last!r}", param="last")
    return int(last)


def cluster_entry(record: GroupRecord) -> dict[str, Any]:
    """One group of `/admin/cluster`."""
    state = record.state or control_pb2.GroupState()
    return {
        "group": record.label,
        "phase": record.phase,
        "state": "unreachable" if record.error is not None or record.state is None else state.state,
        "cause": record.trouble,
        "layout": state.layout,
        "layout_epoch": state.layout_epoch,
        "pinned": state.policy.pinned or None,
        "incarnation": state.incarnation,
        "ranks": state.ranks,
        "steps": state.steps,
        "running": state.running,
        "waiting": state.waiting,
        "kv_tokens_used": state.kv_tokens_used,
        "kv_tokens_total": state.kv_tokens_total,
        "kv_tokens_projected": state.kv_tokens_projected,
        "address": record.address,
    }


def layouts_entry(record: GroupRecord) -> dict[str, Any]:
    """One group of `/admin/layouts`."""
    described = record.description.layouts if record.description is not None else ()
    return {
        "group": record.label,
        "phase": record.phase,
        "layout": record.state.layout if record.state is not None else None,
        "abi": _abi_entry(record),
        "ranks": [
            {"rank": rank.rank, "transport": rank.transport}
            for rank in (record.description.ranks if record.description is not None else ())
        ],
        "layouts": [
            {
                "layout": entry.layout,
                "feasible": entry.feasible,
                "reason": entry.reason,
                "distinct_tokens": entry.distinct_tokens,
            }
            for entry in described
        ],
    }


def _abi_entry(record: GroupRecord) -> dict[str, Any] | None:
    """The group's KV ABI and transport, which its partners must share; None before it was described."""
    return None if record.description is None else asdict(abi_from_pb(record.description.abi))
