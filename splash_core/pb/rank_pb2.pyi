from splash_core.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Flow(_message.Message):
    __slots__ = ("src", "dst", "pages", "src_slots", "dst_slots")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SRC_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DST_SLOTS_FIELD_NUMBER: _ClassVar[int]
    src: int
    dst: int
    pages: bytes
    src_slots: bytes
    dst_slots: bytes
    def __init__(self, src: _Optional[int] = ..., dst: _Optional[int] = ..., pages: _Optional[bytes] = ..., src_slots: _Optional[bytes] = ..., dst_slots: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("flows",)
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    def __init__(self, flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("layout_from", "layout_to", "epoch", "weights", "kv", "boundary_chunks", "layer_chunks", "released", "weight_bytes_per_layer", "kv_bytes_per_layer", "gathered", "ready_layers")
    LAYOUT_FROM_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_TO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LAYER_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_PER_LAYER_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_LAYER_FIELD_NUMBER: _ClassVar[int]
    GATHERED_FIELD_NUMBER: _ClassVar[int]
    READY_LAYERS_FIELD_NUMBER: _ClassVar[int]
    layout_from: str
    layout_to: str
    epoch: int
    weights: str
    kv: str
    boundary_chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    layer_chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    released: _containers.RepeatedScalarFieldContainer[bytes]
    weight_bytes_per_layer: int
    kv_bytes_per_layer: _containers.RepeatedScalarFieldContainer[int]
    gathered: _containers.RepeatedScalarFieldContainer[str]
    ready_layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, layout_from: _Optional[str] = ..., layout_to: _Optional[str] = ..., epoch: _Optional[int] = ..., weights: _Optional[str] = ..., kv: _Optional[str] = ..., boundary_chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., layer_chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., released: _Optional[_Iterable[bytes]] = ..., weight_bytes_per_layer: _Optional[int] = ..., kv_bytes_per_layer: _Optional[_Iterable[int]] = ..., gathered: _Optional[_Iterable[str]] = ..., ready_layers: _Optional[_Iterable[int]] = ...) -> None: ...

class PrecopyBatch(_message.Message):
    __slots__ = ("weight_layers", "gathered", "chunks")
    WEIGHT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    GATHERED_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    weight_layers: _containers.RepeatedScalarFieldContainer[int]
    gathered: _containers.RepeatedScalarFieldContainer[str]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, weight_layers: _Optional[_Iterable[int]] = ..., gathered: _Optional[_Iterable[str]] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class NewSequence(_message.Message):
    __slots__ = ("seq", "sampling", "tokens", "num_prompt")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    sampling: _common_pb2.Sampling
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_prompt: int
    def __init__(self, seq: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ..., num_prompt: _Optional[int] = ...) -> None: ...

class TableUpdate(_message.Message):
    __slots__ = ("seq", "first_page", "slots")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first_page: int
    slots: bytes
    def __init__(self, seq: _Optional[int] = ..., first_page: _Optional[int] = ..., slots: _Optional[bytes] = ...) -> None: ...

class SequenceStep(_message.Message):
    __slots__ = ("seq", "start", "tokens", "sample", "drawn_in", "before")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DRAWN_IN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    sample: bool
    drawn_in: int
    before: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seq: _Optional[int] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., sample: _Optional[bool] = ..., drawn_in: _Optional[int] = ..., before: _Optional[_Iterable[int]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step", "epoch", "layout", "sequences", "started", "tables", "finished", "manifest", "mode", "form", "cp_storage", "precopy", "ahead", "taken_seq", "taken_pages", "switch_near")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    CP_STORAGE_FIELD_NUMBER: _ClassVar[int]
    PRECOPY_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    TAKEN_SEQ_FIELD_NUMBER: _ClassVar[int]
    TAKEN_PAGES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NEAR_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    layout: str
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceStep]
    started: _containers.RepeatedCompositeFieldContainer[NewSequence]
    tables: _containers.RepeatedCompositeFieldContainer[TableUpdate]
    finished: _containers.RepeatedScalarFieldContainer[int]
    manifest: Manifest
    mode: str
    form: str
    cp_storage: str
    precopy: PrecopyBatch
    ahead: _containers.RepeatedCompositeFieldContainer[TableUpdate]
    taken_seq: _containers.RepeatedScalarFieldContainer[int]
    taken_pages: _containers.RepeatedScalarFieldContainer[int]
    switch_near: bool
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., layout: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[SequenceStep, _Mapping]]] = ..., started: _Optional[_Iterable[_Union[NewSequence, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[TableUpdate, _Mapping]]] = ..., finished: _Optional[_Iterable[int]] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., mode: _Optional[str] = ..., form: _Optional[str] = ..., cp_storage: _Optional[str] = ..., precopy: _Optional[_Union[PrecopyBatch, _Mapping]] = ..., ahead: _Optional[_Iterable[_Union[TableUpdate, _Mapping]]] = ..., taken_seq: _Optional[_Iterable[int]] = ..., taken_pages: _Optional[_Iterable[int]] = ..., switch_near: _Optional[bool] = ...) -> None: ...

class SampledToken(_message.Message):
    __slots__ = ("seq", "token", "logprobs")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    token: int
    logprobs: _common_pb2.TokenLogprobs
    def __init__(self, seq: _Optional[int] = ..., token: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.TokenLogprobs, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("seq", "first_position", "entries")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first_position: int
    entries: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, seq: _Optional[int] = ..., first_position: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "rank", "tokens", "prompt_logprobs", "switch_bytes_received", "total_s", "switch_wait_s", "precopy_bytes_received")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PRECOPY_BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    step: int
    rank: int
    tokens: _containers.RepeatedCompositeFieldContainer[SampledToken]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    switch_bytes_received: int
    total_s: float
    switch_wait_s: float
    precopy_bytes_received: int
    def __init__(self, step: _Optional[int] = ..., rank: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[SampledToken, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., switch_bytes_received: _Optional[int] = ..., total_s: _Optional[float] = ..., switch_wait_s: _Optional[float] = ..., precopy_bytes_received: _Optional[int] = ...) -> None: ...

class PushPages(_message.Message):
    __slots__ = ("push", "targets", "deadline_s", "step", "layer_ends", "lease", "attempt", "incarnation", "group")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYER_ENDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    push: int
    targets: _containers.RepeatedCompositeFieldContainer[PushTarget]
    deadline_s: float
    step: int
    layer_ends: _containers.RepeatedScalarFieldContainer[int]
    lease: str
    attempt: int
    incarnation: str
    group: str
    def __init__(self, push: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[PushTarget, _Mapping]]] = ..., deadline_s: _Optional[float] = ..., step: _Optional[int] = ..., layer_ends: _Optional[_Iterable[int]] = ..., lease: _Optional[str] = ..., attempt: _Optional[int] = ..., incarnation: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class PushTarget(_message.Message):
    __slots__ = ("peer", "src_slot", "dst_slot")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SRC_SLOT_FIELD_NUMBER: _ClassVar[int]
    DST_SLOT_FIELD_NUMBER: _ClassVar[int]
    peer: _common_pb2.RankAddress
    src_slot: _containers.RepeatedScalarFieldContainer[int]
    dst_slot: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, peer: _Optional[_Union[_common_pb2.RankAddress, _Mapping]] = ..., src_slot: _Optional[_Iterable[int]] = ..., dst_slot: _Optional[_Iterable[int]] = ...) -> None: ...

class PushResult(_message.Message):
    __slots__ = ("push", "rank", "error", "bytes", "held_s", "writing_s")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    WRITING_S_FIELD_NUMBER: _ClassVar[int]
    push: int
    rank: int
    error: str
    bytes: int
    held_s: float
    writing_s: float
    def __init__(self, push: _Optional[int] = ..., rank: _Optional[int] = ..., error: _Optional[str] = ..., bytes: _Optional[int] = ..., held_s: _Optional[float] = ..., writing_s: _Optional[float] = ...) -> None: ...

class RankTraffic(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[_common_pb2.TrafficSample]
    def __init__(self, samples: _Optional[_Iterable[_Union[_common_pb2.TrafficSample, _Mapping]]] = ...) -> None: ...

class RankLoading(_message.Message):
    __slots__ = ("done_bytes", "total_bytes")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class RankReady(_message.Message):
    __slots__ = ("rank", "address", "load_s", "arena_bytes", "process")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    address: _common_pb2.RankAddress
    load_s: float
    arena_bytes: int
    process: _common_pb2.Process
    def __init__(self, rank: _Optional[int] = ..., address: _Optional[_Union[_common_pb2.RankAddress, _Mapping]] = ..., load_s: _Optional[float] = ..., arena_bytes: _Optional[int] = ..., process: _Optional[_Union[_common_pb2.Process, _Mapping]] = ...) -> None: ...

class RankFailure(_message.Message):
    __slots__ = ("rank", "error")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    error: str
    def __init__(self, rank: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class FenceWriter(_message.Message):
    __slots__ = ("writer", "term")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    writer: str
    term: int
    def __init__(self, writer: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class ToRank(_message.Message):
    __slots__ = ("step", "push", "stop", "cancel_push", "link", "fence")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CANCEL_PUSH_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    step: StepPlan
    push: PushPages
    stop: bool
    cancel_push: int
    link: _common_pb2.LinkNotice
    fence: FenceWriter
    def __init__(self, step: _Optional[_Union[StepPlan, _Mapping]] = ..., push: _Optional[_Union[PushPages, _Mapping]] = ..., stop: _Optional[bool] = ..., cancel_push: _Optional[int] = ..., link: _Optional[_Union[_common_pb2.LinkNotice, _Mapping]] = ..., fence: _Optional[_Union[FenceWriter, _Mapping]] = ...) -> None: ...

class FromRank(_message.Message):
    __slots__ = ("ready", "step", "push", "failure", "loading", "pushes_open", "traffic", "fenced")
    READY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    PUSHES_OPEN_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ready: RankReady
    step: StepResult
    push: PushResult
    failure: RankFailure
    loading: RankLoading
    pushes_open: bool
    traffic: RankTraffic
    fenced: FenceWriter
    def __init__(self, ready: _Optional[_Union[RankReady, _Mapping]] = ..., step: _Optional[_Union[StepResult, _Mapping]] = ..., push: _Optional[_Union[PushResult, _Mapping]] = ..., failure: _Optional[_Union[RankFailure, _Mapping]] = ..., loading: _Optional[_Union[RankLoading, _Mapping]] = ..., pushes_open: _Optional[bool] = ..., traffic: _Optional[_Union[RankTraffic, _Mapping]] = ..., fenced: _Optional[_Union[FenceWriter, _Mapping]] = ...) -> None: ...
