"""Wire messages <-> dataclasses, field by field; with `moves_codec` the only file that sees both.

Invariant: `x_from_pb(x_to_pb(value)) == value` for every value (tests/property/test_codec.py), so a plan that
a rank executes is exactly the plan that the leader made.
"""

from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.columns import SlotRows
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout, Matrix
from splash_core.obs.lifeline import ProcessRef
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.moves_codec import (
    chunks_from_pb,
    chunks_to_pb,
    column_from_pb,
    column_to_pb,
    precopy_from_pb,
    precopy_to_pb,
)
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
from splash_core.spec.request import Purpose, SamplingParams
from splash_core.switch.manifest import Primitive, SwitchManifest, SwitchMode

_PURPOSES = {Purpose.USER: common_pb2.PURPOSE_USER, Purpose.PROBE: common_pb2.PURPOSE_PROBE}


def sampling_to_pb(value: SamplingParams) -> common_pb2.Sampling:
    """Sampling parameters for the wire."""
    return common_pb2.Sampling(
        temperature=value.temperature,
        top_k=value.top_k,
        top_p=value.top_p,
        min_p=value.min_p,
        seed=value.seed,
        presence_penalty=value.presence_penalty,
        frequency_penalty=value.frequency_penalty,
        repetition_penalty=value.repetition_penalty,
        logit_bias=dict(value.logit_bias),
        logprobs=value.logprobs,
        prompt_logprobs=value.prompt_logprobs,
        max_tokens=value.max_tokens,
        min_tokens=value.min_tokens,
        stop_token_ids=value.stop_token_ids,
        priority=value.priority,
        purpose=_PURPOSES[value.purpose],
    )


def sampling_from_pb(message: common_pb2.Sampling) -> SamplingParams:
    """Sampling parameters from the wire; raises `InvalidRequest` on a value out of range."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        # A map has no order on the wire; sorted, equal requests are equal values.
        logit_bias=tuple(sorted(message.logit_bias.items())),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        priority=message.priority,
        # One that is not known, or not said, is a user's: an older router's probes have the lowest priority,
        # but so may a client's requests (docs/http-api.md).
        purpose=Purpose.PROBE if message.purpose == common_pb2.PURPOSE_PROBE else Purpose.USER,
    )


def logprobs_to_pb(value: TokenLogprobs) -> common_pb2.TokenLogprobs:
    """One token's log-probabilities for the wire."""
    top = [common_pb2.TopLogprob(token=token, logprob=logprob) for token, logprob in value.top]
    return common_pb2.TokenLogprobs(token=value.token, logprob=value.logprob, top=top)


def logprobs_from_pb(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    """One token's log-probabilities from the wire."""
    top = tuple((entry.token, entry.logprob) for entry in message.top)
    return TokenLogprobs(token=message.token, logprob=message.logprob, top=top)


def process_to_pb(value: ProcessRef) -> common_pb2.Process:
    """A process reference for the wire."""
    return common_pb2.Process(host=value.host, pid=value.pid, start_ticks=value.start_ticks)


def process_from_pb(message: common_pb2.Process) -> ProcessRef:
    """A process reference from the wire."""
    return ProcessRef(host=message.host, pid=message.pid, start_ticks=message.start_ticks)


def manifest_to_pb(value: SwitchManifest) -> rank_pb2.Manifest:
    """A switch manifest for the wire."""
    return rank_pb2.Manifest(
        layout_from=value.layout_from,
        layout_to=value.layout_to,
        epoch=value.epoch,
        weights=value.weights,
        gathered=value.gathered,
        kv=value.kv,
        boundary_chunks=chunks_to_pb(value.boundary_chunks),
        layer_chunks=chunks_to_pb(value.layer_chunks),
        released=map(column_to_pb, value.released),
        weight_bytes_per_layer=value.weight_bytes_per_layer,
        kv_bytes_per_layer=value.kv_bytes_per_layer,
        ready_layers=value.ready_layers,
    )


def manifest_from_pb(message: rank_pb2.Manifest) -> SwitchManifest:
    """A switch manifest from the wire."""
    return SwitchManifest(
        layout_from=Layout(message.layout_from),
        layout_to=Layout(message.layout_to),
        epoch=Epoch(message.epoch),
        weights=Primitive(message.weights),
        gathered=tuple(Matrix(name) for name in message.gathered),
        kv=Primitive(message.kv),
        boundary_chunks=chunks_from_pb(message.boundary_chunks),
        layer_chunks=chunks_from_pb(message.layer_chunks),
        released=tuple(map(column_from_pb, message.released)),
        weight_bytes_per_layer=message.weight_bytes_per_layer,
        kv_bytes_per_layer=tuple(message.kv_bytes_per_layer),
        ready_layers=tuple(message.ready_layers),
    )


def plan_to_pb(value: StepPlan) -> rank_pb2.StepPlan:
    """A step plan for the wire."""
    return rank_pb2.StepPlan(
        step=value.step,
        epoch=value.epoch,
        layout=value.layout,
        sequences=[_rows_to_pb(rows) for rows in value.sequences],
        started=[
            rank_pb2.NewSequence(
                seq=new.seq,
                sampling=sampling_to_pb(new.sampling),
                tokens=new.tokens,
                num_prompt=new.num_prompt,
            )
            for new in value.started
        ],
        tables=[_table_to_pb(table) for table in value.tables],
        finished=value.finished,
        manifest=None if value.manifest is None else manifest_to_pb(value.manifest),
        mode=value.mode,
        precopy=None if value.precopy is None else precopy_to_pb(value.precopy),
        ahead=[_table_to_pb(table) for table in value.ahead],
        taken_seq=[rows.seq for rows in value.taken],
        taken_pages=[rows.num_pages for rows in value.taken],
        switch_near=value.switch_near,
        form=value.form,
        cp_storage=value.cp_storage,
    )


def plan_from_pb(message: rank_pb2.StepPlan, *, num_ranks: int) -> StepPlan:
    """A step plan from the wire.

    Args:
        message: the wire form.
        num_ranks: T, the row length of its page tables.
    """
    return StepPlan(
        step=StepId(message.step),
        epoch=Epoch(message.epoch),
        layout=Layout(message.layout),
        sequences=tuple(_rows_from_pb(rows) for rows in message.sequences),
        started=tuple(
            NewSequence(
                seq=SeqId(new.seq),
                sampling=sampling_from_pb(new.sampling),
                tokens=tuple(new.tokens),
                num_prompt=new.num_prompt,
            )
            for new in message.started
        ),
        tables=tuple(_table_from_pb(table, num_ranks) for table in message.tables),
        finished=tuple(SeqId(seq) for seq in message.finished),
        manifest=manifest_from_pb(message.manifest) if message.HasField("manifest") else None,
        mode=SwitchMode(message.mode),
        precopy=precopy_from_pb(message.precopy) if message.HasField("precopy") else None,
        ahead=tuple(_table_from_pb(table, num_ranks) for table in message.ahead),
        taken=tuple(
            TakenRows(seq=SeqId(seq), num_pages=pages)
            for seq, pages in zip(message.taken_seq, message.taken_pages, strict=True)
        ),
        switch_near=message.switch_near,
        form=AttentionForm(message.form),
        cp_storage=CpStorage(message.cp_storage),
    )


def _rows_to_pb(value: SequenceStep) -> rank_pb2.SequenceStep:
    known = () if isinstance(value.tokens, DrawnToken) else value.tokens
    return rank_pb2.SequenceStep(
        seq=value.seq,
        start=value.start,
        tokens=known,
        sample=value.sample,
        drawn_in=value.tokens.step if isinstance(value.tokens, DrawnToken) else None,
        before=value.before,
    )


def _rows_from_pb(message: rank_pb2.SequenceStep) -> SequenceStep:
    drawn = message.HasField("drawn_in")
    return SequenceStep(
        seq=SeqId(message.seq),
        start=message.start,
        tokens=DrawnToken(StepId(message.drawn_in)) if drawn else tuple(message.tokens),
        sample=message.sample,
        before=tuple(message.before),
    )


def _table_to_pb(value: TableUpdate) -> rank_pb2.TableUpdate:
    return rank_pb2.TableUpdate(
        seq=value.seq, first_page=value.first_page, slots=column_to_pb(value.slots.slots)
    )


def _table_from_pb(message: rank_pb2.TableUpdate, num_ranks: int) -> TableUpdate:
    rows = SlotRows(num_ranks, column_from_pb(message.slots))
    return TableUpdate(seq=SeqId(message.seq), first_page=message.first_page, slots=rows)


def result_to_pb(value: StepResult) -> rank_pb2.StepResult:
    """A rank's step result for the wire."""
    return rank_pb2.StepResult(
        step=value.step,
        rank=value.rank,
        tokens=[
            rank_pb2.SampledToken(
                seq=drawn.seq,
                token=drawn.token,
                logprobs=None if drawn.logprobs is None else logprobs_to_pb(drawn.logprobs),
            )
            for drawn in value.tokens
        ],
        prompt_logprobs=[
            rank_pb2.PromptLogprobs(
                seq=part.seq,
                first_position=part.first_position,
                entries=[logprobs_to_pb(entry) for entry in part.entries],
            )
            for part in value.prompt_logprobs
        ],
        switch_bytes_received=value.switch_bytes_received,
        precopy_bytes_received=value.precopy_bytes_received,
        total_s=value.times.total_s,
        switch_wait_s=value.times.switch_wait_s,
    )


def result_from_pb(message: rank_pb2.StepResult) -> StepResult:
    """A rank's step result from the wire."""
    return StepResult(
        step=StepId(message.step),
        rank=RankId(message.rank),
        tokens=tuple(
            SampledToken(
                seq=SeqId(drawn.seq),
                token=drawn.token,
                logprobs=logprobs_from_pb(drawn.logprobs) if drawn.HasField("logprobs") else None,
            )
            for drawn in message.tokens
        ),
        prompt_logprobs=tuple(
            PromptLogprobs(
                seq=SeqId(part.seq),
                first_position=part.first_position,
                entries=tuple(logprobs_from_pb(entry) for entry in part.entries),
            )
            for part in message.prompt_logprobs
        ),
        switch_bytes_received=message.switch_bytes_received,
        precopy_bytes_received=message.precopy_bytes_received,
        times=StepTimes(total_s=message.total_s, switch_wait_s=message.switch_wait_s),
    )
