"""Real prefill and decode leader processes without weights, and a client that plays the router's part."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from services.children import Child
from splash_core.engine.fake import fake_token
from splash_core.pb import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)

VOCAB = 320
START_TIMEOUT_S = 200.0


def greedy(max_tokens: int, **fields: object) -> common_pb2.Sampling:
    """Greedy sampling parameters in wire form."""
    base = common_pb2.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=max_tokens)
    base.MergeFrom(common_pb2.Sampling(**fields))  # type: ignore[arg-type]
    return base


def expected_tokens(prompt: list[int], count: int) -> list[int]:
    """What a fake group generates greedily."""
    history = list(prompt)
    for _ in range(count):
        history.append(fake_token(history, seed=0, vocab=VOCAB))
    return history[len(prompt) :]


def start_group(phase: str, model: Path, run_dir: Path, *, name: str, flags: dict[str, object]) -> Child:
    """Start a leader, with fake ranks unless `flags` say otherwise; it listens on `run_dir/NAME.grpc`."""
    arguments = {
        "model": model,
        "engine": "fake",
        "run-dir": run_dir,
        "group": name,
        "page-size": 8,
        "kv-bytes": 1 << 20,
        "policy": "off",
        "listen": f"unix:{run_dir / name}.grpc",
        **flags,
    }
    return Child(name, [phase, *[f"--{key}={value}" for key, value in arguments.items()]], run_dir=run_dir)


def await_ready(run_dir: Path, *children: Child) -> None:
    """Wait until the groups are ready; fails with the cause if one dies."""
    end = time.monotonic() + START_TIMEOUT_S
    for child in children:
        while not (run_dir / f"{child.name}.ready").exists():
            death = child.death()
            assert death is None, str(death)
            assert time.monotonic() < end, f"{child.name} was not ready in {START_TIMEOUT_S} s"
            time.sleep(0.05)


@contextlib.contextmanager
def running(*children: Child) -> Iterator[None]:
    """End the children at exit, whatever happened."""
    try:
        yield
    finally:
        for child in children:
            child.kill()


@dataclass
class Outcome:
    """How one request ended."""

    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    lease: common_pb2.Lease | None = None


class FakeRouter:
    """Runs requests over one prefill and one decode group, as the router does."""

    def __init__(self, run_dir: Path, *, prefill: str, decode: str) -> None:
        self._prefill_channel = grpc.aio.insecure_channel(f"unix:{run_dir / prefill}.grpc")
        self._decode_channel = grpc.aio.insecure_channel(f"unix:{run_dir / decode}.grpc")
        self.prefill = prefill_pb2_grpc.PrefillStub(self._prefill_channel)
        self.decode = decode_pb2_grpc.DecodeStub(self._decode_channel)
        self.prefill_control = control_pb2_grpc.ControlStub(self._prefill_channel)
        self.decode_control = control_pb2_grpc.ControlStub(self._decode_channel)

    async def close(self) -> None:
        await self._prefill_channel.close(None)
        await self._decode_channel.close(None)

    async def generate(
        self,
        request_id: str,
        prompt: list[int],
        sampling: common_pb2.Sampling,
        outcome: Outcome | None = None,
    ) -> Outcome:
        """One request to its end; cancelling it cancels both calls."""
        outcome = Outcome() if outcome is None else outcome
        call = self.decode.Generate(
            decode_pb2.DecodeRequest(request_id=request_id, prompt=prompt, sampling=sampling)
        )
        run: asyncio.Future[prefill_pb2.PrefillResult] | None = None
        try:
            async for event in call:
                kind = event.WhichOneof("event")
                if kind == "lease":
                    outcome.lease = event.lease
                    request = prefill_pb2.PrefillRequest(
                        request_id=request_id, prompt=prompt, sampling=sampling, lease=event.lease
                    )
                    run = asyncio.ensure_future(_awaited(self.prefill.Run(request)))
                elif kind == "tokens":
                    outcome.tokens.extend(event.tokens.tokens)
                else:
                    outcome.finish = event.finished.reason
            assert run is not None
            await run
        finally:
            call.cancel()
            if run is not None:
                run.cancel()
        return outcome

    async def audits(self) -> tuple[control_pb2.GroupAudit, control_pb2.GroupAudit]:
        request = control_pb2.AuditRequest()
        return await self.prefill_control.Audit(request), await self.decode_control.Audit(request)

    async def until_empty(self, *, within_s: float) -> None:
        """Wait until both groups hold nothing; fails with what is held."""
        end = time.monotonic() + within_s
        while True:
            audits = await self.audits()
            if all(audit.pages_held == 0 and not audit.leases for audit in audits):
                return
            assert time.monotonic() < end, f"still held: {audits}"
            await asyncio.sleep(0.05)


async def _awaited(call: grpc.aio.UnaryUnaryCall) -> prefill_pb2.PrefillResult:
    try:
        return await call
    finally:
        call.cancel()


@contextlib.asynccontextmanager
async def fake_router(
    run_dir: Path, *, prefill: str = "prefill-0", decode: str = "decode-0"
) -> AsyncIterator[FakeRouter]:
    """A router over the two groups, closed at exit."""
    router = FakeRouter(run_dir, prefill=prefill, decode=decode)
    try:
        yield router
    finally:
        await router.close()
