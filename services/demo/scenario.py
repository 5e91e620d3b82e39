"""The demo's course: a question, an unswitched run, and each phase's twelve switches under live streams.

A switch counts only when at least one stream ran through the group being switched both before and after it:
in decode a stream that has tokens and is not finished, in prefill one whose prompt is not finished. A switch
that came too late is taken back and made again under the next wave of streams.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import openai

from services.admin_client import AdminClient
from services.demo.circuit import directed_circuit
from services.demo.prompts import PROMPTS, QUESTION
from services.demo.report import DemoReport, SwitchReport
from services.demo.streams import Wave, wait_until
from splash_core.layout.layout import STANDARD_LAYOUTS

MAX_TOKENS = 68
MAX_WAVES = 8
PACE_TOKENS = 18
"""Decode: tokens, over all streams, between one switch's answer and the next switch."""
PACE_S = 0.05
"""Prefill: pause between one switch's answer and the next switch."""

Tokens = tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTarget:
    """The stack that the demo talks to."""

    client: openai.OpenAI
    admin: AdminClient
    model: str
    prompts: Sequence[str] = PROMPTS

    def wave(self) -> Wave:
        """Start one stream for each prompt."""
        return Wave(self.client, model=self.model, prompts=self.prompts, max_tokens=MAX_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWalk:
    """How one phase is walked."""

    name: str
    start: str
    """Its layout when the stack starts."""
    alive: Callable[[Wave], frozenset[int]]
    """Streams that run through this phase's group now."""
    begun: Callable[[DemoTarget, Wave], bool]
    """True when the group has begun to work on the wave."""
    pace: Callable[[Wave], None]
    """Lets some work happen between two switches."""


def _prefill_runs(target: DemoTarget, wave: Wave) -> bool:
    del wave
    groups = target.admin.get("/admin/cluster")["groups"]
    return any(group["phase"] == "prefill" and group["running"] for group in groups)


def _decode_runs(target: DemoTarget, wave: Wave) -> bool:
    del target
    return bool(wave.decoding())


def _some_chunks(wave: Wave) -> None:
    del wave
    time.sleep(PACE_S)


def _some_tokens(wave: Wave) -> None:
    mark = wave.progress() + PACE_TOKENS
    wait_until(lambda: wave.progress() >= mark or not wave.decoding(), what="decode progress")


PREFILL = PhaseWalk(name="prefill", start="TP", alive=Wave.unstarted, begun=_prefill_runs, pace=_some_chunks)
DECODE = PhaseWalk(name="decode", start="DP", alive=Wave.decoding, begun=_decode_runs, pace=_some_tokens)


def ask(target: DemoTarget) -> str:
    """The answer to a real question."""
    completion = target.client.chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=32,
        temperature=0,
    )
    return completion.choices[0].message.content or ""


def walk(target: DemoTarget, phase: PhaseWalk, expected: Tokens) -> list[SwitchReport]:
    """All twelve switches of one phase, each under live streams whose tokens are compared with `expected`."""
    edges = list(directed_circuit(STANDARD_LAYOUTS, phase.start))
    reports: list[SwitchReport] = []
    began = time.monotonic()
    for _ in range(MAX_WAVES):
        if not edges:
            break
        wave = target.wave()
        wait_until(lambda wave=wave: wave.ended() or phase.begun(target, wave), what=f"work for {phase.name}")
        seen = _switch_under(target, phase, wave, edges, began)
        tokens = wave.finish()
        equal = [got == wanted for got, wanted in zip(tokens, expected, strict=True)]
        reports += [
            replace(entry, tokens_equal=all(equal[index] for index in alive)) for entry, alive in seen
        ]
    return reports


def _switch_under(
    target: DemoTarget, phase: PhaseWalk, wave: Wave, edges: list[tuple[str, str]], began: float
) -> list[tuple[SwitchReport, frozenset[int]]]:
    """Make switches until the wave or the walk ends; those made are taken off `edges`."""
    seen: list[tuple[SwitchReport, frozenset[int]]] = []
    while edges:
        alive = phase.alive(wave)
        if not alive:
            break
        source, goal = edges[0]
        report = _switch(target, phase, (source, goal), began)
        alive &= phase.alive(wave)
        if not alive:
            _switch(target, phase, (goal, source), began)
            break
        seen.append((replace(report, streams=len(alive)), alive))
        edges.pop(0)
        phase.pace(wave)
    return seen


def _switch(target: DemoTarget, phase: PhaseWalk, edge: tuple[str, str], began: float) -> SwitchReport:
    asked = time.monotonic()
    answer = target.admin.post("/admin/layout", {"phase": phase.name, "layout": edge[1], "hold_s": 3600.0})
    return SwitchReport(
        phase=phase.name,
        source=answer["from"],
        target=answer["to"],
        mode=answer["mode"],
        exposed_ms=answer["exposed_ms"],
        num_bytes=answer["bytes"],
        at_s=asked - began,
        took_s=time.monotonic() - asked,
        streams=0,
        tokens_equal=False,
    )


def run(target: DemoTarget, report: DemoReport, progress: Callable[[str], None]) -> None:
    """The whole course, into `report`."""
    progress("asking a question")
    report.answer = ask(target)
    progress("streams without switches")
    expected = target.wave().finish()
    report.generated = tuple(len(tokens) for tokens in expected)
    for phase in (PREFILL, DECODE):
        progress(f"{phase.name}: twelve switches under live streams")
        report.switches += walk(target, phase, expected)
    progress("draining")
    target.admin.post("/admin/drain", {})
    report.audit = target.admin.get("/admin/audit")
