"""For whom a request is served is a mark of its own: it is carried, it orders, and no client can set it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from splash_core.errors import Overloaded
from splash_core.ids import Epoch, Incarnation, LeaseId, RequestId, SeqId, StepId
from splash_core.layout.layout import Layout
from splash_core.leader.pace import StepPace
from splash_core.leader.waiting import Arrival, WaitingRoom
from splash_core.pb import common_pb2
from splash_core.rpc.codec import sampling_from_pb, sampling_to_pb
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import NewSequence, SequenceStep, StepPlan
from splash_core.spec.request import MOST_PRIORITY, Purpose, SamplingParams
from tests.support.openai_conformance import error_of
from tests.support.scripted_router import running_router, write_tokenizer
from tests.support.toy_group import ToyGroup, arena_of

LAST = SamplingParams(temperature=0.0, max_tokens=2, priority=MOST_PRIORITY)
"""A user who is in no hurry at all."""
PROBE = SamplingParams(temperature=0.0, max_tokens=2, purpose=Purpose.PROBE)


def test_the_mark_is_carried_and_who_has_none_is_a_user() -> None:
    assert sampling_from_pb(sampling_to_pb(PROBE)) == PROBE
    assert sampling_from_pb(sampling_to_pb(LAST)).purpose is Purpose.USER
    told = sampling_to_pb(PROBE)
    told.ClearField("purpose")
    assert sampling_from_pb(told).purpose is Purpose.USER
    newer = common_pb2.Sampling.FromString(told.SerializeToString() + b"\x80\x01\x07")
    assert newer.purpose == 7
    assert sampling_from_pb(newer).purpose is Purpose.USER


@pytest.mark.parametrize("mark", ["probe", 1, "PURPOSE_PROBE"])
def test_no_client_can_set_it(tmp_path: Path, mark: object) -> None:
    with running_router(write_tokenizer(tmp_path)) as router:
        while httpx.get(f"{router.url}/ready").status_code != 200:
            pass
        ask: dict[str, Any] = {"model": "test-model", "prompt": "abc", "max_tokens": 2}
        url = f"{router.url}/v1/completions"
        assert error_of(httpx.post(url, json=ask | {"purpose": mark}), 400)["param"] == "purpose"
        accepted = {"metadata": {"purpose": "probe"}, "user": "probe", "priority": MOST_PRIORITY}
        answer = httpx.post(url, json=ask | accepted, headers={"x-purpose": "probe"})
        assert answer.status_code == 200, answer.text
        (sent,) = router.backend.counts.requests
        assert (sent.sampling.priority, sent.sampling.purpose) == (MOST_PRIORITY, common_pb2.PURPOSE_USER)


def test_a_user_of_the_last_priority_goes_before_a_probe_that_came_long_ago() -> None:
    group = ToyGroup(layout=Layout.TP, chunk_tokens=4, max_running=1)
    running = group.add([1] * 4, LAST)
    group.step()
    probe = group.add([2] * 4, PROBE)
    group.clock = 1000.0
    user = group.add([3] * 4, LAST)
    group.run()
    assert [new.seq for plan in group.plans for new in plan.started] == [running, user, probe]


def test_a_probe_is_preempted_for_a_user_and_its_wait_bars_no_lease() -> None:
    group = ToyGroup(
        role=Role.DECODE, arena=arena_of(num_ranks=1, ordinary=7), admission_overcommit=9.0, max_running=4
    )
    for purpose, length in ((Purpose.PROBE, 6), (Purpose.USER, 2)):
        sampling = SamplingParams(temperature=0.0, max_tokens=8, purpose=purpose)
        grant = group.reserve([1] * length, sampling)
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.land(grant)
    while group.scheduler.count(SeqState.WAITING) == 0:
        assert group.step() is not None
    (waits,) = (one for one in group.scheduler._parts.roster if one.state is SeqState.WAITING)
    assert waits.sampling.purpose is Purpose.PROBE
    tokens = group.scheduler.kv_tokens()
    assert (tokens.waiting, tokens.waiting_sequences) == (0, 0)
    assert group.reserve([1], PROBE) is None
    grant = group.reserve([1], LAST)
    assert grant is not None
    group.cancel(grant.seq)
    group.run()
    group.assert_empty()


def test_probes_wait_behind_users_for_pages_and_fill_nobody_s_queue() -> None:
    async def scenario() -> None:
        room_for, granted = [0], list[str]()

        def reserve(arrival: Arrival) -> Grant | None:
            if not room_for[0]:
                return None
            room_for[0] -= 1
            granted.append(arrival.request_id)
            lease = LeaseId(arrival.request_id)
            return Grant(lease=lease, seq=SeqId(1), attempt=1, incarnation=Incarnation("i"), pages=())

        room = WaitingRoom(reserve, lambda _: None, max_requests=1, max_tokens=5)

        async def admit(name: str, sampling: SamplingParams, since: float) -> Grant:
            arrival = Arrival(request_id=RequestId(name), prompt=(1,) * 5, sampling=sampling, since=since)
            return await room.admit(arrival)

        waiting = [asyncio.create_task(admit(f"probe-{index}", PROBE, 0.0)) for index in range(2)]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(admit("user", LAST, 1000.0)))
        await asyncio.sleep(0)
        assert len(room) == 3
        for sampling in (PROBE, LAST):
            with pytest.raises(Overloaded, match="1 requests wait"):
                await admit("late", sampling, 1001.0)
        room_for[0] = 3
        room.pump()
        await asyncio.gather(*waiting)
        assert granted == ["user", "probe-0", "probe-1"]

    asyncio.run(scenario())


def test_what_steps_amount_to_leaves_probes_out() -> None:
    def plan(*seqs: int, started: tuple[NewSequence, ...] = (), finished: tuple[int, ...] = ()) -> StepPlan:
        return StepPlan(
            step=StepId(1),
            epoch=Epoch(0),
            layout=Layout.TP,
            sequences=tuple(SequenceStep(seq=SeqId(n), start=0, tokens=(1, 2), sample=True) for n in seqs),
            started=started,
            finished=tuple(map(SeqId, finished)),
        )

    def new(seq: int, sampling: SamplingParams) -> NewSequence:
        return NewSequence(seq=SeqId(seq), sampling=sampling, tokens=(1, 2), num_prompt=2)

    pace = StepPace()
    pace.record(plan(1, started=(new(1, PROBE),)), 1.0)
    assert pace.totals.steps == 0
    assert pace.recent_s == 1.0, "how long steps take does not depend on whom they are for"
    pace.record(plan(1, 2, started=(new(2, LAST),)), 3.0)
    pace.record(plan(1), 7.0)
    pace.record(plan(2, finished=(1,)), 2.0)
    totals = pace.totals
    assert (totals.steps, totals.rows, totals.sequences) == (2, 4, 2)
    assert (totals.step_s, totals.sequence_s) == (5.0, 5.0)
