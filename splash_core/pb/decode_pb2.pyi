from splash_core.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchLinksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "prompt", "sampling")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.Sampling
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ...) -> None: ...

class DecodeEvent(_message.Message):
    __slots__ = ("lease", "tokens", "finished")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    lease: _common_pb2.Lease
    tokens: DecodedTokens
    finished: DecodeFinished
    def __init__(self, lease: _Optional[_Union[_common_pb2.Lease, _Mapping]] = ..., tokens: _Optional[_Union[DecodedTokens, _Mapping]] = ..., finished: _Optional[_Union[DecodeFinished, _Mapping]] = ...) -> None: ...

class DecodedTokens(_message.Message):
    __slots__ = ("tokens", "logprobs")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class DecodeFinished(_message.Message):
    __slots__ = ("reason", "stop_token", "wait_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    stop_token: int
    wait_s: float
    def __init__(self, reason: _Optional[str] = ..., stop_token: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class LeaseClaim(_message.Message):
    __slots__ = ("lease", "attempt", "incarnation", "writer")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    lease: str
    attempt: int
    incarnation: str
    writer: Writer
    def __init__(self, lease: _Optional[str] = ..., attempt: _Optional[int] = ..., incarnation: _Optional[str] = ..., writer: _Optional[_Union[Writer, _Mapping]] = ...) -> None: ...

class HandoffAbandon(_message.Message):
    __slots__ = ("lease", "attempt", "incarnation", "writer", "reason", "handoff")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    lease: str
    attempt: int
    incarnation: str
    writer: str
    reason: str
    handoff: int
    def __init__(self, lease: _Optional[str] = ..., attempt: _Optional[int] = ..., incarnation: _Optional[str] = ..., writer: _Optional[str] = ..., reason: _Optional[str] = ..., handoff: _Optional[int] = ...) -> None: ...

class Writer(_message.Message):
    __slots__ = ("group", "incarnation", "ranks", "handoff")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: str
    ranks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Process]
    handoff: int
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[_common_pb2.Process, _Mapping]]] = ..., handoff: _Optional[int] = ...) -> None: ...

class OpenHandoffs(_message.Message):
    __slots__ = ("incarnation", "writer", "handoffs", "newest")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    writer: str
    handoffs: _containers.RepeatedScalarFieldContainer[int]
    newest: int
    def __init__(self, incarnation: _Optional[str] = ..., writer: _Optional[str] = ..., handoffs: _Optional[_Iterable[int]] = ..., newest: _Optional[int] = ...) -> None: ...

class HandoffComplete(_message.Message):
    __slots__ = ("lease", "attempt", "incarnation", "num_tokens", "checksum", "first_token", "first_logprobs", "writer", "num_pages", "num_layers", "bytes", "first_position", "handoff")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    lease: str
    attempt: int
    incarnation: str
    num_tokens: int
    checksum: str
    first_token: int
    first_logprobs: _common_pb2.TokenLogprobs
    writer: str
    num_pages: int
    num_layers: int
    bytes: int
    first_position: int
    handoff: int
    def __init__(self, lease: _Optional[str] = ..., attempt: _Optional[int] = ..., incarnation: _Optional[str] = ..., num_tokens: _Optional[int] = ..., checksum: _Optional[str] = ..., first_token: _Optional[int] = ..., first_logprobs: _Optional[_Union[_common_pb2.TokenLogprobs, _Mapping]] = ..., writer: _Optional[str] = ..., num_pages: _Optional[int] = ..., num_layers: _Optional[int] = ..., bytes: _Optional[int] = ..., first_position: _Optional[int] = ..., handoff: _Optional[int] = ...) -> None: ...

class HandoffAck(_message.Message):
    __slots__ = ("accepted", "reason", "term")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    term: int
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...
