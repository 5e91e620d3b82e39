"""Real groups, of which one layout is made to look wrong on its way to the router: it is left and pinned."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.router.config import RouterConfig
from services.router.correctness_admin import probe_watch
from services.router.correctness_watch import ProbeWatch
from services.router.dispatch import Dispatcher, DispatchSettings
from services.router.events import SequenceJob, Tokens
from services.router.gateway import Sources
from services.router.metrics import Metrics
from services.router.registry import Registry
from services.router.tokenizer import Tokenizer
from services.router.worker import GrpcWorker
from splash_core.dispatch.admission import QueueLimits
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import control_pb2, decode_pb2
from splash_core.spec.request import SamplingParams
from tests.support.fake_groups import await_ready, fake_router, running, start_group

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
WRONG = "DOP"


class WrongInOneLayout(GrpcWorker):
    """A decode leader whose log-probabilities are off wherever `WRONG` was in force when it was asked."""

    async def generate(
        self, request: decode_pb2.DecodeRequest
    ) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        wrong = (await self.state(timeout_s=5.0)).layout == WRONG
        async with contextlib.aclosing(super().generate(request)) as events:
            async for event in events:
                for entry in event.tokens.logprobs:
                    entry.logprob -= 0.01 if wrong else 0.0
                yield event


@pytest.fixture(scope="module")
def groups(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run_dir = tmp_path_factory.mktemp("t")
    flags: dict[str, object] = {"engine": "torch", "dtype": "fp32", "kv-bytes": 1 << 20, "host-ranks": 4}
    flags |= {"max-model-len": 200, "ranks": 2}
    children = [
        start_group(phase, tiny_v3, run_dir, name=f"{phase}-0", flags=flags)
        for phase in ("prefill", "decode")
    ]
    with running(*children):
        await_ready(run_dir, *children)
        yield run_dir


@contextlib.asynccontextmanager
async def _watched(run_dir: Path, model: Path) -> AsyncIterator[tuple[ProbeWatch, Dispatcher, Registry]]:
    """A router's probes and its way for users, in this event loop."""
    addresses = {phase: f"unix:{run_dir}/{phase}-0.grpc" for phase in ("prefill", "decode")}
    loop = asyncio.get_running_loop()
    workers = {
        "prefill": [GrpcWorker(addresses["prefill"])],
        "decode": [WrongInOneLayout(addresses["decode"])],
    }
    registry = Registry(workers, clock=loop.time, poll_interval_s=0.05, poll_timeout_s=5.0)
    limits = QueueLimits(requests=100, prompt_tokens=100_000)
    dispatcher = Dispatcher(
        registry, DispatchSettings(limits=limits, expected_output_tokens=64), clock=loop.time
    )
    config = RouterConfig(
        model=model, prefill=(addresses["prefill"],), decode=(addresses["decode"],), probe_every_s=3600.0
    )
    watch = probe_watch(
        config,
        dispatcher=dispatcher,
        tokenizer=Tokenizer.load(model),
        metrics=Metrics(),
        sources=Sources(monotonic=loop.time, wall=loop.time, new_id=lambda: "e2e"),
    )
    await registry.start(VitalTasks())
    await watch.start(VitalTasks())
    try:
        yield watch, dispatcher, registry
    finally:
        await watch.stop()
        await registry.stop()


async def _answer(dispatcher: Dispatcher, name: str) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=40)
    job = SequenceJob(request_id=name, prompt=tuple(range(30, 60)), sampling=sampling)
    return [
        token
        async for event in dispatcher.generate(job)
        if isinstance(event, Tokens)
        for token in event.tokens
    ]


async def _until_verdict(watch: ProbeWatch, registry: Registry, *, checks: int) -> str:
    async with asyncio.timeout(60):
        while True:
            for pair in watch.to_json()["pairs"]:
                if pair["checks"] >= checks:
                    return pair["last"]["verdict"]
            await registry.wait_for_change()


def test_a_leader_goes_back_to_the_last_good_layout_and_stays_there(groups: Path, tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _watched(groups, tiny_v3) as (watch, dispatcher, registry), fake_router(groups) as direct:
            assert await _until_verdict(watch, registry, checks=1) == "REFERENCE"
            usual = await _answer(dispatcher, "before")
            await direct.decode_control.SetLayout(control_pb2.SetLayoutRequest(layout="CP"))
            assert await _until_verdict(watch, registry, checks=2) == "SAME"
            users = [asyncio.ensure_future(_answer(dispatcher, f"user{index}")) for index in range(4)]
            await direct.decode_control.SetLayout(control_pb2.SetLayoutRequest(layout=WRONG))
            # The drift, and then the check of the layout that the group has gone back to.
            assert await _until_verdict(watch, registry, checks=4) == "SAME"
            assert await asyncio.gather(*users) == [usual] * 4
            state = await direct.decode_control.GetState(control_pb2.StateRequest())
            assert (state.layout, state.policy.pinned, state.layout_epoch) == ("CP", "CP", 3)
            prefill = await direct.prefill_control.GetState(control_pb2.StateRequest())
            assert prefill.policy.pinned == ""
            (told,) = watch.to_json()["pairs"]
            assert (told["drifts"], told["alarm"]["groups"][0]["pinned_to"]) == (1, "CP")
            await direct.decode_control.Pin(control_pb2.PinRequest(layout=""))
            async with asyncio.timeout(20):
                while watch.alarm_of("decode-0") is not None:
                    await registry.wait_for_change()
            await direct.until_empty(within_s=5)

    asyncio.run(scenario())
