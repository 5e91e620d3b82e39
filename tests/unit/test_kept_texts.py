"""What groups keep of probes, as a text: what is merged of several and left out, and how much may be kept."""

import asyncio
import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import grpc.aio
import pytest

from services.router.worker import GrpcWorker
from splash_core.errors import InvalidRequest, Unavailable
from splash_core.leader.kept import LONGEST_NAME, MOST_KEPT, MOST_NAMES, KeptTexts
from splash_core.pb import control_pb2_grpc
from splash_core.policy.correctness import Said
from splash_core.policy.correctness_memory import GoodMark, ProbeMemory, memory_from, recalled, trimmed
from splash_core.policy.correctness_notes import GroupMark, PairMark, ProbeNotes, Round
from splash_core.policy.snapshot import Phase


def mark(group: str, *, epoch: int = 0) -> GroupMark:
    return GroupMark(group=group, phase=Phase.DECODE, incarnation="i", epoch=epoch, layout="DP")


def answered(time_s: float, *, model: str = "m", logprob: float = -1.0, prompt: int = 1) -> Round:
    pair = PairMark(model=model, dtype="fp32", prompts=((prompt, 2),), prefill=mark("p"), decode=mark("d"))
    said = (Said(token=3, logprob=logprob, margin=math.inf),)
    return Round(time_s=time_s, mark=pair, answers=(said,))


def test_what_is_served_keeps_its_reference_however_old_and_much_that_is_not_goes() -> None:
    old = answered(1.0, model="served")
    newer = [answered(2.0 + time, model=f"m{time}", prompt=time // 6) for time in range(60)]
    notes = ProbeNotes(references=(old, *newer))
    found = trimmed(notes, served={("served", "fp32")})
    assert found.references[0] == old
    by_prompt = Counter(one.mark.prompts for one in found.references[1:])
    assert (max(by_prompt.values()), by_prompt.total()) == (4, 16)
    assert found.references[-1] == newer[-1]
    assert trimmed(found, served={("served", "fp32")}) is found


def test_a_memory_survives_its_text() -> None:
    good = GoodMark(model="m", dtype="fp32", mark=mark("d", epoch=3))
    memory = ProbeMemory(reset_s=1.5, references=(answered(2.0, logprob=-0.1),), good=(good,))
    assert memory_from(memory.to_text()) == memory
    json.loads(memory.to_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_in_whatever_order_memories_are_heard_they_come_to_the_same() -> None:
    memories = (
        ProbeMemory(references=(answered(1.0), answered(9.0, model="n"))),
        ProbeMemory(
            reset_s=5.0,
            references=(answered(7.0),),
            good=(GoodMark(model="m", dtype="fp32", mark=mark("d")),),
        ),
        ProbeMemory(reset_s=5.0, references=(answered(6.0), answered(8.0, model="n"))),
    )
    found: list[tuple[ProbeNotes, float]] = []
    for order in permutations(memories):
        notes, reset_s = ProbeNotes(good={("d", "m", "fp32"): mark("d", epoch=7)}), 0.0
        for memory in order:
            notes, reset_s = recalled(notes, [memory], reset_s=reset_s)
        found += [(notes, reset_s), recalled(ProbeNotes(), order, reset_s=0.0)]
    assert {reset_s for _, reset_s in found} == {5.0}
    for notes, _ in found:
        assert [(one.time_s, one.mark.model) for one in notes.references] == [(6.0, "m"), (8.0, "n")]
        assert notes.good == {("d", "m", "fp32"): mark("d")}


def test_what_a_router_saw_itself_is_known_better_than_what_was_kept() -> None:
    own = ProbeNotes(good={("d", "m", "fp32"): mark("d", epoch=7)})
    kept = ProbeMemory(good=(GoodMark(model="m", dtype="fp32", mark=mark("d")),))
    notes, _ = recalled(own, [kept], reset_s=0.0)
    assert notes.good == own.good


def test_a_group_keeps_no_more_than_it_has_room_for() -> None:
    texts = KeptTexts()
    texts.keep("a", "x")
    with pytest.raises(InvalidRequest, match=f"'b' would make it {MOST_KEPT + 1} characters"):
        texts.keep("b", "y" * MOST_KEPT)
    assert (texts.get("a"), texts.get("b")) == ("x", "")
    texts.keep("a", "")
    texts.keep("b", "y" * MOST_KEPT)
    assert texts.get("a") == ""


def test_a_group_keeps_texts_under_few_and_short_names() -> None:
    texts = KeptTexts()
    for number in range(MOST_NAMES):
        texts.keep(str(number), "x")
    texts.keep("0", "y")
    with pytest.raises(InvalidRequest, match="'more' would be one name more than the 16"):
        texts.keep("more", "x")
    texts.keep("0", "")
    texts.keep("more", "x")
    for name in ("", "n" * (LONGEST_NAME + 1)):
        with pytest.raises(InvalidRequest, match=f"a name of {len(name)} characters"):
            texts.keep(name, "x")


def test_a_leader_that_knows_no_keep_keeps_nothing_and_one_that_is_not_there_is_unavailable() -> None:
    async def call() -> None:
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(control_pb2_grpc.ControlServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        worker = GrpcWorker(f"127.0.0.1:{port}")
        try:
            assert await worker.kept("probes", timeout_s=5.0) is None
            await server.stop(None)
            with pytest.raises(Unavailable, match=r"the group at .* does not answer: see its log, restart"):
                await worker.kept("probes", timeout_s=5.0)
        finally:
            await worker.close()
            await server.stop(None)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(call())).result()
