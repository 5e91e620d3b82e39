"""Tokens that ranks drew reach all ranks' rows, whoever drew them; plans that name others are refused."""

from collections.abc import Iterator

import pytest
import torch

from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.engine.engine import RankEngine
from splash_core.engine.mirror import SequenceMirrors
from splash_core.engine.spans import HostSpan, StreamSpan
from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, RequestId, SeqId, StepId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import DrawnToken, NewSequence, SequenceStep, StepPlan
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from tests.conftest import TinyFactory
from tests.support.fake_gpu import FakeGpu
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

SEQ = SeqId(1)


def _plan(step: int, rows: SequenceStep, *started: NewSequence) -> StepPlan:
    return StepPlan(step=StepId(step), epoch=Epoch(0), layout=Layout.TP, sequences=(rows,), started=started)


def test_mirrors_learn_from_plans_alone() -> None:
    mirrors = SequenceMirrors(num_ranks=1)
    new = NewSequence(seq=SEQ, sampling=SamplingParams(), tokens=(5, 6), num_prompt=2)
    mirrors.apply(_plan(1, SequenceStep(seq=SEQ, start=0, tokens=(5, 6), sample=True), new))
    late = DrawnToken(StepId(1))
    mirrors.apply(_plan(2, SequenceStep(seq=SEQ, start=2, tokens=late, sample=True)))
    assert mirrors[SEQ].output == []
    late = DrawnToken(StepId(2))
    mirrors.apply(_plan(3, SequenceStep(seq=SEQ, start=3, tokens=late, sample=True, before=(7,))))
    assert mirrors[SEQ].output == [7]
    mirrors.apply(_plan(4, SequenceStep(seq=SEQ, start=4, tokens=(9,), sample=True, before=(8,))))
    assert mirrors[SEQ].output == [7, 8, 9]


@pytest.fixture(scope="module")
def group(tiny_checkpoint: TinyFactory) -> Iterator[Group]:
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    ranks = ThreadRanks(checkpoint, arena_with(spec, num_ranks=3, page_size=2, elem_bytes=8, ordinary=40))
    yield Group(ranks)
    ranks.close()


@pytest.mark.parametrize("layout", [Layout.CP, Layout.DP])
def test_rows_may_begin_on_other_ranks_than_the_one_that_drew(group: Group, layout: Layout) -> None:
    """In CP home goes round with each page of two; in DP some ranks have no row at all."""

    def play(*, ahead: bool) -> list[int]:
        group.reset(layout, SchedulerConfig(role=Role.COMBINED, layouts=tuple(Layout)))
        sampling = SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.3)
        group.scheduler.add(RequestId("me"), (5, 9, 200), sampling)
        tokens: list[int] = []
        while group.scheduler.count():
            events = group.step_ahead() if ahead else group.step()
            tokens += [event.token for event in events if isinstance(event, TokenEvent)]
        return tokens

    assert play(ahead=True) == play(ahead=False)
    assert group.seen["tokens ahead"] > 0


def test_a_plan_that_names_a_draw_that_never_was_is_refused(tiny_checkpoint: TinyFactory) -> None:
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=1, page_size=2, elem_bytes=8, ordinary=8)

    def rank_main(comms: RankComms) -> None:
        engine = RankEngine.load(
            checkpoint,
            spec=spec,
            arena=arena,
            memory=torch.zeros(arena.arena_bytes, dtype=torch.uint8),
            comms=comms,
            dtype=torch.float64,
            layout=Layout.TP,
        )
        new = NewSequence(seq=SEQ, sampling=SamplingParams(), tokens=(5,), num_prompt=1)
        rows = SequenceStep(seq=SEQ, start=1, tokens=DrawnToken(StepId(3)), sample=True)
        with pytest.raises(InvariantBroken, match="begins sequence 1 with the token of step 3"):
            engine.begin(_plan(4, rows, new))

    run_ranks(1, rank_main)


def test_spans_of_steps_behind_each_other_do_not_overlap() -> None:
    gpu = FakeGpu()
    first = StreamSpan(gpu)
    gpu.main.run(2.0)
    first.end()
    second = StreamSpan(gpu)
    assert first.passed
    assert not second.passed
    gpu.main.run(3.0)
    second.end()
    assert (first.seconds(), second.seconds()) == (2.0, 3.0)
    host = HostSpan()
    host.end()
    assert host.passed
    assert host.seconds() >= 0
