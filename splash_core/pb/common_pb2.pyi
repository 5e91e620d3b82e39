from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_USER: _ClassVar[Purpose]
    PURPOSE_PROBE: _ClassVar[Purpose]
PURPOSE_USER: Purpose
PURPOSE_PROBE: Purpose

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "prompt_logprobs", "max_tokens", "min_tokens", "stop_token_ids", "priority", "purpose")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    prompt_logprobs: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    purpose: Purpose
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token", "logprob", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class KvAbi(_message.Message):
    __slots__ = ("version", "dtype", "page_size", "layers", "latent_dim", "rope_dim", "rope", "scale", "model", "model_name", "transport")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LATENT_DIM_FIELD_NUMBER: _ClassVar[int]
    ROPE_DIM_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    version: str
    dtype: str
    page_size: int
    layers: int
    latent_dim: int
    rope_dim: int
    rope: str
    scale: str
    model: str
    model_name: str
    transport: str
    def __init__(self, version: _Optional[str] = ..., dtype: _Optional[str] = ..., page_size: _Optional[int] = ..., layers: _Optional[int] = ..., latent_dim: _Optional[int] = ..., rope_dim: _Optional[int] = ..., rope: _Optional[str] = ..., scale: _Optional[str] = ..., model: _Optional[str] = ..., model_name: _Optional[str] = ..., transport: _Optional[str] = ...) -> None: ...

class RankAddress(_message.Message):
    __slots__ = ("rank", "transport", "arena_bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    transport: str
    arena_bytes: int
    def __init__(self, rank: _Optional[int] = ..., transport: _Optional[str] = ..., arena_bytes: _Optional[int] = ...) -> None: ...

class LandingPage(_message.Message):
    __slots__ = ("index", "rank", "slot")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    index: int
    rank: int
    slot: int
    def __init__(self, index: _Optional[int] = ..., rank: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease", "attempt", "incarnation", "group", "decode_address", "pages")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DECODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    attempt: int
    incarnation: str
    group: str
    decode_address: str
    pages: _containers.RepeatedCompositeFieldContainer[LandingPage]
    def __init__(self, lease: _Optional[str] = ..., attempt: _Optional[int] = ..., incarnation: _Optional[str] = ..., group: _Optional[str] = ..., decode_address: _Optional[str] = ..., pages: _Optional[_Iterable[_Union[LandingPage, _Mapping]]] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("host", "pid", "start_ticks")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    host: str
    pid: int
    start_ticks: int
    def __init__(self, host: _Optional[str] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ...) -> None: ...

class TrafficSample(_message.Message):
    __slots__ = ("name", "traffic", "peer", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    traffic: str
    peer: str
    value: float
    def __init__(self, name: _Optional[str] = ..., traffic: _Optional[str] = ..., peer: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("kind", "message", "param", "code", "retry_after_s", "nearest")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    param: str
    code: str
    retry_after_s: float
    nearest: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., code: _Optional[str] = ..., retry_after_s: _Optional[float] = ..., nearest: _Optional[str] = ...) -> None: ...

class LinkNotice(_message.Message):
    __slots__ = ("near", "switching")
    NEAR_FIELD_NUMBER: _ClassVar[int]
    SWITCHING_FIELD_NUMBER: _ClassVar[int]
    near: bool
    switching: bool
    def __init__(self, near: _Optional[bool] = ..., switching: _Optional[bool] = ...) -> None: ...
