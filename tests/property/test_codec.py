"""What a rank receives is exactly what the leader sent, for every step plan, result and manifest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.ids import Epoch, PageId, RankId, SeqId, SlotId, StepId
from splash_core.layout.columns import Column, SlotRows, column
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout, Matrix
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc import codec, moves_codec
from splash_core.scheduling.step import (
    DrawnToken,
    NewSequence,
    PromptLogprobs,
    SampledToken,
    SequenceStep,
    StepPlan,
    StepResult,
    StepTimes,
    TableUpdate,
    TakenRows,
    TokenLogprobs,
)
from splash_core.spec.request import MOST_PRIORITY, Purpose, SamplingParams
from splash_core.switch.manifest import Chunk, PageMove, Primitive, SwitchManifest, SwitchMode
from splash_core.switch.precopy import PrecopyBatch

INT32 = st.integers(0, 2**31 - 1)
SMALL = st.integers(0, 100_000)
FLOATS = st.floats(allow_nan=False)
SEQS = st.integers(1, 2**62).map(SeqId)


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(INT32)
    return SamplingParams(
        temperature=draw(st.floats(0.0, 2.0)),
        top_k=draw(INT32),
        top_p=draw(st.floats(0.0, 1.0, exclude_min=True)),
        min_p=draw(st.floats(0.0, 1.0)),
        seed=draw(st.integers(0, 2**64 - 1)),
        presence_penalty=draw(st.floats(-2.0, 2.0)),
        frequency_penalty=draw(st.floats(-2.0, 2.0)),
        repetition_penalty=draw(st.floats(0.0, 10.0, exclude_min=True)),
        logit_bias=tuple(sorted(draw(st.dictionaries(SMALL, FLOATS, max_size=4)).items())),
        logprobs=draw(st.none() | st.integers(0, 20)),
        prompt_logprobs=draw(st.none() | st.integers(0, 20)),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        stop_token_ids=tuple(draw(st.lists(SMALL, max_size=3))),
        priority=draw(st.integers(-MOST_PRIORITY, MOST_PRIORITY)),
        purpose=draw(st.sampled_from(Purpose)),
    )


LOGPROBS = st.builds(
    TokenLogprobs,
    token=SMALL,
    logprob=FLOATS,
    top=st.lists(st.tuples(SMALL, FLOATS), max_size=3).map(tuple),
)
MOVES = st.builds(
    PageMove,
    st.integers(0, 2**63 - 1).map(PageId),
    st.integers(0, 7).map(RankId),
    SMALL.map(SlotId),
    st.integers(0, 7).map(RankId),
    SMALL.map(SlotId),
)
CHUNKS = st.lists(st.lists(MOVES, max_size=4).map(Chunk.of), max_size=3).map(tuple)
COLUMNS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(column)
MANIFESTS = st.builds(
    SwitchManifest,
    layout_from=st.sampled_from(Layout),
    layout_to=st.sampled_from(Layout),
    epoch=SMALL.map(Epoch),
    weights=st.sampled_from(Primitive),
    gathered=st.lists(st.sampled_from(Matrix), max_size=3).map(tuple),
    kv=st.sampled_from(Primitive),
    boundary_chunks=CHUNKS,
    layer_chunks=CHUNKS,
    released=st.lists(COLUMNS, max_size=4).map(tuple),
    weight_bytes_per_layer=st.integers(0, 2**50),
    kv_bytes_per_layer=st.lists(st.integers(0, 2**50), max_size=8).map(tuple),
    ready_layers=st.lists(st.integers(0, 100), max_size=4).map(tuple),
)
BATCHES = st.builds(
    PrecopyBatch,
    weight_layers=st.lists(st.integers(0, 100), max_size=4).map(tuple),
    gathered=st.lists(st.sampled_from(Matrix), unique=True).map(tuple),
    chunks=CHUNKS,
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    num_ranks = draw(st.integers(1, 5))
    row = st.lists(st.integers(-1, 10_000), min_size=num_ranks, max_size=num_ranks)
    table = st.lists(row, max_size=3).map(lambda rows: SlotRows.of(rows, num_ranks=num_ranks))
    tokens = st.lists(SMALL, max_size=5).map(tuple)
    plan = StepPlan(
        step=StepId(draw(st.integers(1, 2**40))),
        epoch=Epoch(draw(SMALL)),
        layout=draw(st.sampled_from(Layout)),
        sequences=tuple(
            draw(
                st.lists(
                    st.builds(
                        SequenceStep,
                        seq=SEQS,
                        start=SMALL,
                        tokens=tokens | st.builds(DrawnToken, SMALL.map(StepId)),
                        sample=st.booleans(),
                        before=tokens,
                    ),
                    max_size=3,
                )
            )
        ),
        started=tuple(
            draw(
                st.lists(
                    st.builds(NewSequence, seq=SEQS, sampling=samplings(), tokens=tokens, num_prompt=SMALL),
                    max_size=2,
                )
            )
        ),
        tables=tuple(
            draw(
                st.lists(
                    st.builds(TableUpdate, seq=SEQS, first_page=SMALL, slots=table),
                    max_size=3,
                )
            )
        ),
        finished=tuple(draw(st.lists(SEQS, max_size=3))),
        manifest=draw(st.none() | MANIFESTS),
        mode=draw(st.sampled_from(SwitchMode)),
        precopy=draw(st.none() | BATCHES),
        ahead=tuple(
            draw(
                st.lists(
                    st.builds(TableUpdate, seq=SEQS, first_page=SMALL, slots=table),
                    max_size=2,
                )
            )
        ),
        taken=tuple(draw(st.lists(st.builds(TakenRows, seq=SEQS, num_pages=SMALL), max_size=2))),
        form=draw(st.sampled_from(AttentionForm)),
        cp_storage=draw(st.sampled_from(CpStorage)),
    )
    return plan, num_ranks


RESULTS = st.builds(
    StepResult,
    step=SMALL.map(StepId),
    rank=st.integers(0, 7).map(RankId),
    tokens=st.lists(
        st.builds(SampledToken, seq=SEQS, token=SMALL, logprobs=st.none() | LOGPROBS), max_size=3
    ).map(tuple),
    prompt_logprobs=st.lists(
        st.builds(
            PromptLogprobs, seq=SEQS, first_position=SMALL, entries=st.lists(LOGPROBS, max_size=3).map(tuple)
        ),
        max_size=2,
    ).map(tuple),
    switch_bytes_received=st.integers(0, 2**60),
    precopy_bytes_received=st.integers(0, 2**60),
    times=st.builds(StepTimes, total_s=FLOATS, switch_wait_s=FLOATS),
)


@given(samplings())
def test_sampling_survives_the_wire(value: SamplingParams) -> None:
    wire = common_pb2.Sampling.FromString(codec.sampling_to_pb(value).SerializeToString())
    assert codec.sampling_from_pb(wire) == value


@given(MANIFESTS)
def test_manifest_survives_the_wire(value: SwitchManifest) -> None:
    wire = rank_pb2.Manifest.FromString(codec.manifest_to_pb(value).SerializeToString())
    assert codec.manifest_from_pb(wire) == value


@given(COLUMNS)
def test_columns_have_one_order_of_bytes(entries: Column) -> None:
    with pytest.MonkeyPatch.context() as patch:
        wires: list[bytes] = []
        for swapped in (False, True):
            patch.setattr(moves_codec, "_SWAPPED", swapped)
            wires.append(moves_codec.column_to_pb(entries))
            assert moves_codec.column_from_pb(wires[-1]) == entries
    assert [wires[1][at : at + 4][::-1] for at in range(0, len(wires[1]), 4)] == [
        wires[0][at : at + 4] for at in range(0, len(wires[0]), 4)
    ]


@settings(max_examples=60)
@given(plans())
def test_plan_survives_the_wire(case: tuple[StepPlan, int]) -> None:
    plan, num_ranks = case
    wire = rank_pb2.StepPlan.FromString(codec.plan_to_pb(plan).SerializeToString())
    assert codec.plan_from_pb(wire, num_ranks=num_ranks) == plan


@given(RESULTS)
def test_result_survives_the_wire(value: StepResult) -> None:
    wire = rank_pb2.StepResult.FromString(codec.result_to_pb(value).SerializeToString())
    assert codec.result_from_pb(wire) == value
