from splash_core.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "phase", "incarnation", "abi", "ranks", "max_model_len", "max_request_tokens", "layouts", "model", "leader", "sign_within_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ABI_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    SIGN_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    phase: str
    incarnation: str
    abi: _common_pb2.KvAbi
    ranks: _containers.RepeatedCompositeFieldContainer[_common_pb2.RankAddress]
    max_model_len: int
    max_request_tokens: int
    layouts: _containers.RepeatedCompositeFieldContainer[LayoutFeasibility]
    model: str
    leader: _common_pb2.Process
    sign_within_s: float
    def __init__(self, group: _Optional[str] = ..., phase: _Optional[str] = ..., incarnation: _Optional[str] = ..., abi: _Optional[_Union[_common_pb2.KvAbi, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[_common_pb2.RankAddress, _Mapping]]] = ..., max_model_len: _Optional[int] = ..., max_request_tokens: _Optional[int] = ..., layouts: _Optional[_Iterable[_Union[LayoutFeasibility, _Mapping]]] = ..., model: _Optional[str] = ..., leader: _Optional[_Union[_common_pb2.Process, _Mapping]] = ..., sign_within_s: _Optional[float] = ...) -> None: ...

class LayoutFeasibility(_message.Message):
    __slots__ = ("layout", "feasible", "reason", "distinct_tokens")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FEASIBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    layout: str
    feasible: bool
    reason: str
    distinct_tokens: int
    def __init__(self, layout: _Optional[str] = ..., feasible: _Optional[bool] = ..., reason: _Optional[str] = ..., distinct_tokens: _Optional[int] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "phase", "state", "layout", "layout_epoch", "incarnation", "ranks", "steps", "running", "waiting", "kv_tokens_used", "kv_tokens_total", "kv_tokens_projected", "step_age_s", "failure", "traffic", "policy", "totals", "forecasts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_PROJECTED_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    phase: str
    state: str
    layout: str
    layout_epoch: int
    incarnation: str
    ranks: int
    steps: int
    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    kv_tokens_projected: int
    step_age_s: float
    failure: str
    traffic: _containers.RepeatedCompositeFieldContainer[_common_pb2.TrafficSample]
    policy: PolicyState
    totals: StepTotals
    forecasts: _containers.RepeatedCompositeFieldContainer[LayoutForecast]
    def __init__(self, group: _Optional[str] = ..., phase: _Optional[str] = ..., state: _Optional[str] = ..., layout: _Optional[str] = ..., layout_epoch: _Optional[int] = ..., incarnation: _Optional[str] = ..., ranks: _Optional[int] = ..., steps: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_tokens_used: _Optional[int] = ..., kv_tokens_total: _Optional[int] = ..., kv_tokens_projected: _Optional[int] = ..., step_age_s: _Optional[float] = ..., failure: _Optional[str] = ..., traffic: _Optional[_Iterable[_Union[_common_pb2.TrafficSample, _Mapping]]] = ..., policy: _Optional[_Union[PolicyState, _Mapping]] = ..., totals: _Optional[_Union[StepTotals, _Mapping]] = ..., forecasts: _Optional[_Iterable[_Union[LayoutForecast, _Mapping]]] = ...) -> None: ...

class LayoutForecast(_message.Message):
    __slots__ = ("layout", "steps", "predicted_s", "measured_s", "ratio", "drifting")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    DRIFTING_FIELD_NUMBER: _ClassVar[int]
    layout: str
    steps: int
    predicted_s: float
    measured_s: float
    ratio: float
    drifting: bool
    def __init__(self, layout: _Optional[str] = ..., steps: _Optional[int] = ..., predicted_s: _Optional[float] = ..., measured_s: _Optional[float] = ..., ratio: _Optional[float] = ..., drifting: _Optional[bool] = ...) -> None: ...

class PolicyState(_message.Message):
    __slots__ = ("version", "digest", "trying", "pinned")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRYING_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: str
    trying: bool
    pinned: str
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[str] = ..., trying: _Optional[bool] = ..., pinned: _Optional[str] = ...) -> None: ...

class StepTotals(_message.Message):
    __slots__ = ("steps", "rows", "sequences", "step_s", "sequence_s", "prompts", "ttft_s")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_S_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    steps: int
    rows: int
    sequences: int
    step_s: float
    sequence_s: float
    prompts: int
    ttft_s: float
    def __init__(self, steps: _Optional[int] = ..., rows: _Optional[int] = ..., sequences: _Optional[int] = ..., step_s: _Optional[float] = ..., sequence_s: _Optional[float] = ..., prompts: _Optional[int] = ..., ttft_s: _Optional[float] = ...) -> None: ...

class SetLayoutRequest(_message.Message):
    __slots__ = ("layout", "mode", "hold_s")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    layout: str
    mode: str
    hold_s: float
    def __init__(self, layout: _Optional[str] = ..., mode: _Optional[str] = ..., hold_s: _Optional[float] = ...) -> None: ...

class SetLayoutResult(_message.Message):
    __slots__ = ("group", "from_layout", "to_layout", "layout_epoch", "mode", "exposed_ms", "bytes", "precopied_bytes", "fallback")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TO_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PRECOPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    group: str
    from_layout: str
    to_layout: str
    layout_epoch: int
    mode: str
    exposed_ms: float
    bytes: int
    precopied_bytes: int
    fallback: str
    def __init__(self, group: _Optional[str] = ..., from_layout: _Optional[str] = ..., to_layout: _Optional[str] = ..., layout_epoch: _Optional[int] = ..., mode: _Optional[str] = ..., exposed_ms: _Optional[float] = ..., bytes: _Optional[int] = ..., precopied_bytes: _Optional[int] = ..., fallback: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("layout",)
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    layout: str
    def __init__(self, layout: _Optional[str] = ...) -> None: ...

class PinResult(_message.Message):
    __slots__ = ("group", "pinned")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    group: str
    pinned: str
    def __init__(self, group: _Optional[str] = ..., pinned: _Optional[str] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("version", "digest", "document", "trying")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TRYING_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: str
    document: str
    trying: bool
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[str] = ..., document: _Optional[str] = ..., trying: _Optional[bool] = ...) -> None: ...

class SetPolicyResult(_message.Message):
    __slots__ = ("group", "policy")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    group: str
    policy: PolicyState
    def __init__(self, group: _Optional[str] = ..., policy: _Optional[_Union[PolicyState, _Mapping]] = ...) -> None: ...

class DecisionsRequest(_message.Message):
    __slots__ = ("last",)
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: int
    def __init__(self, last: _Optional[int] = ...) -> None: ...

class DecisionsResult(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, records: _Optional[_Iterable[str]] = ...) -> None: ...

class BundleRequest(_message.Message):
    __slots__ = ("last",)
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: int
    def __init__(self, last: _Optional[int] = ...) -> None: ...

class BundleResult(_message.Message):
    __slots__ = ("group", "phase", "bundle")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    group: str
    phase: str
    bundle: str
    def __init__(self, group: _Optional[str] = ..., phase: _Optional[str] = ..., bundle: _Optional[str] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class KeepResult(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeptRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class KeptResult(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("pages",)
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: bool
    def __init__(self, pages: _Optional[bool] = ...) -> None: ...

class RankAudit(_message.Message):
    __slots__ = ("rank", "slots", "free", "weights", "kv", "quarantined", "precopied")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    PRECOPIED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    slots: int
    free: int
    weights: int
    kv: int
    quarantined: int
    precopied: int
    def __init__(self, rank: _Optional[int] = ..., slots: _Optional[int] = ..., free: _Optional[int] = ..., weights: _Optional[int] = ..., kv: _Optional[int] = ..., quarantined: _Optional[int] = ..., precopied: _Optional[int] = ...) -> None: ...

class LeaseAudit(_message.Message):
    __slots__ = ("lease", "state", "owner", "writer", "pages", "age_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    state: str
    owner: str
    writer: str
    pages: int
    age_s: float
    def __init__(self, lease: _Optional[str] = ..., state: _Optional[str] = ..., owner: _Optional[str] = ..., writer: _Optional[str] = ..., pages: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class PushAudit(_message.Message):
    __slots__ = ("push", "owner", "lease", "pages", "age_s")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    push: int
    owner: str
    lease: str
    pages: int
    age_s: float
    def __init__(self, push: _Optional[int] = ..., owner: _Optional[str] = ..., lease: _Optional[str] = ..., pages: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class PageAudit(_message.Message):
    __slots__ = ("page", "slots", "owner", "state", "lease", "writer", "pushes", "age_s")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    page: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    owner: str
    state: str
    lease: str
    writer: str
    pushes: _containers.RepeatedScalarFieldContainer[int]
    age_s: float
    def __init__(self, page: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., owner: _Optional[str] = ..., state: _Optional[str] = ..., lease: _Optional[str] = ..., writer: _Optional[str] = ..., pushes: _Optional[_Iterable[int]] = ..., age_s: _Optional[float] = ...) -> None: ...

class WaitAudit(_message.Message):
    __slots__ = ("subject", "waits_for", "age_s")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    subject: str
    waits_for: str
    age_s: float
    def __init__(self, subject: _Optional[str] = ..., waits_for: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class GroupAudit(_message.Message):
    __slots__ = ("group", "phase", "layout", "layout_epoch", "ranks", "leases", "borrowed_pages_used", "pages_held", "pushes", "pages", "waits")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    BORROWED_PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    PAGES_HELD_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    group: str
    phase: str
    layout: str
    layout_epoch: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankAudit]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseAudit]
    borrowed_pages_used: int
    pages_held: int
    pushes: _containers.RepeatedCompositeFieldContainer[PushAudit]
    pages: _containers.RepeatedCompositeFieldContainer[PageAudit]
    waits: _containers.RepeatedCompositeFieldContainer[WaitAudit]
    def __init__(self, group: _Optional[str] = ..., phase: _Optional[str] = ..., layout: _Optional[str] = ..., layout_epoch: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankAudit, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[LeaseAudit, _Mapping]]] = ..., borrowed_pages_used: _Optional[int] = ..., pages_held: _Optional[int] = ..., pushes: _Optional[_Iterable[_Union[PushAudit, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[PageAudit, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[WaitAudit, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline_s",)
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    deadline_s: float
    def __init__(self, deadline_s: _Optional[float] = ...) -> None: ...

class DrainResult(_message.Message):
    __slots__ = ("drained", "left")
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    left: int
    def __init__(self, drained: _Optional[bool] = ..., left: _Optional[int] = ...) -> None: ...
