"""The endpoints of probes on the admin port (`/admin/canary`), and how what asks them is put together."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.config import RouterConfig
from services.router.correctness_check import Checker
from services.router.correctness_hold import Holder
from services.router.correctness_memory import MemoryInGroups
from services.router.correctness_prompts import PromptBook
from services.router.correctness_round import Questioner
from services.router.correctness_watch import ProbeWatch
from services.router.dispatch import Dispatcher
from services.router.gateway import Sources
from services.router.metrics import Metrics
from services.router.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAdmin:
    """The endpoints and what they stand on."""

    watch: ProbeWatch

    async def get(self, _: Request) -> Response:
        """`GET /admin/canary`: every pair's reference, last check and alarm, and the newest drifts."""
        return JSONResponse(self.watch.to_json())

    async def reset(self, _: Request) -> Response:
        """`POST /admin/canary/reset`: forget references and alarms; pins stay."""
        self.watch.reset()
        return JSONResponse(self.watch.to_json())


def probe_watch(
    config: RouterConfig,
    *,
    dispatcher: Dispatcher,
    tokenizer: Tokenizer,
    metrics: Metrics,
    sources: Sources,
) -> ProbeWatch:
    """What asks a router's probes, not started.

    Args:
        config: of the router.
        dispatcher: of users' requests; drains.
        tokenizer: makes the prompts.
        metrics: shows what was found.
        sources: clocks, and names of rounds.
    """
    registry = dispatcher.registry
    checker = Checker(
        registry=registry,
        questioner=Questioner(registry=registry, dispatcher=dispatcher, new_id=sources.new_id),
        book=PromptBook(tokenizer),
        deadline_s=config.probe_deadline_s,
        wall=sources.wall,
    )
    return ProbeWatch(
        registry=registry,
        checker=checker,
        holder=Holder(registry=registry, clock=sources.monotonic),
        memory=MemoryInGroups(registry=registry, clock=sources.monotonic, wall=sources.wall),
        metrics=metrics,
        every_s=config.probe_every_s,
        clock=sources.monotonic,
    )
