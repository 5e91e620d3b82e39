"""Plays of switches in the middle of a handoff."""

import asyncio

from splash_core.pb import control_pb2
from tests.faults.bed import WITHIN_S, Bed
from tests.faults.moments import caught_pushing
from tests.faults.requests import Wanted
from tests.faults.rows import Case

_MODES = ("blocking", "overlapped", "precopied")


async def prefill_switches(bed: Bed, case: Case) -> None:
    """The switch is asked for while ranks stand still inside a step; others are served meanwhile."""
    draw = case.draw()
    await _begin(bed, "prefill-0", case)
    async with caught_pushing(bed, Wanted(name=case.name, index=draw.randrange(4), tokens=8)) as request:
        switch = _switch(bed, "prefill-0", case, draw.choice(_MODES))
        await bed.serves(f"{case.name} meanwhile", prefill="prefill-1")
        assert not switch.done(), "ranks that stand still have switched"
    bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    await _check(switch, case)


async def decode_switches(bed: Bed, case: Case) -> None:
    """The switch is done while the writer stands still, with rows of another request in its steps."""
    draw = case.draw()
    await _begin(bed, "decode-0", case)
    async with caught_pushing(bed, Wanted(name=case.name, index=draw.randrange(4), tokens=8)) as request:
        runs = await bed.request(
            Wanted(name=f"{case.name} runs", index=draw.randrange(4), tokens=48), prefill="prefill-1"
        )
        await bed.until(lambda: bool(runs.tokens), "another request decodes")
        await _check(_switch(bed, "decode-0", case, draw.choice(_MODES)), case)
        bed.check(runs, await asyncio.wait_for(runs.whole(), WITHIN_S))
        assert not request.prefilled
    bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))


async def _begin(bed: Bed, group: str, case: Case) -> None:
    """Stand in the layout that the direction begins with; nothing to do unless the case is played alone."""
    layout = case.point.split(">")[0]
    if (await bed.state(group)).layout != layout:
        await bed.stubs[group].control.SetLayout(control_pb2.SetLayoutRequest(layout=layout, mode="blocking"))


def _switch(bed: Bed, group: str, case: Case, mode: str) -> "asyncio.Task[control_pb2.SetLayoutResult]":
    request = control_pb2.SetLayoutRequest(layout=case.point.split(">")[1], mode=mode)

    async def ask() -> control_pb2.SetLayoutResult:
        return await bed.stubs[group].control.SetLayout(request)

    return asyncio.create_task(ask())


async def _check(switch: "asyncio.Task[control_pb2.SetLayoutResult]", case: Case) -> None:
    result = await asyncio.wait_for(switch, WITHIN_S)
    assert f"{result.from_layout}>{result.to_layout}" == case.point
