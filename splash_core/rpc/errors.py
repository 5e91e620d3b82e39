"""The error tree across gRPC: every class keeps its meaning, its field and its retry hint end to end.

A failed call carries a status code (for any client) and, in trailing metadata, an `ErrorDetail` (for ours),
from which `from_rpc_error` makes the very class that the server raised. A peer of another version may not
know a class: a new one travels as the class that it derives from, with a code, and a kind that is not known
is what its status says.
"""

from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from splash_core import errors
from splash_core.pb import common_pb2

DETAIL_KEY = "splash-error-bin"

_STATUS: dict[type[errors.SplashError], grpc.StatusCode] = {
    errors.ContextTooLong: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.GroupFailed: grpc.StatusCode.UNAVAILABLE,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Infeasible: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvariantBroken: grpc.StatusCode.INTERNAL,
}
_REFINED: dict[type[errors.SplashError], str] = {errors.Blocked: "blocked"}
"""Codes of classes that came later; each travels as the nearest one of `_STATUS` that it derives from."""
_KINDS = {kind.__name__: kind for kind in (*_STATUS, *_REFINED)}
_CODES = {code: kind for kind, code in _REFINED.items()}
_OF_STATUS: dict[grpc.StatusCode, type[errors.SplashError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.INTERNAL: errors.InvariantBroken,
}
"""What a kind that is not known here is taken for; `Unavailable` for all other statuses."""


def status_of(error: errors.SplashError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return grpc.StatusCode.INTERNAL


def detail_of(error: errors.SplashError) -> common_pb2.ErrorDetail:
    """What travels besides the status."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind in _STATUS), "SplashError")
    detail = common_pb2.ErrorDetail(kind=kind, message=str(error))
    detail.code = next((_REFINED[kind] for kind in type(error).__mro__ if kind in _REFINED), "")
    if isinstance(error, errors.InvalidRequest):
        detail.code = error.code
        if error.param is not None:
            detail.param = error.param
    if isinstance(error, errors.Overloaded):
        detail.retry_after_s = error.retry_after_s
    if isinstance(error, errors.Infeasible) and error.nearest is not None:
        detail.nearest = error.nearest
    return detail


def from_detail(detail: common_pb2.ErrorDetail, status: grpc.StatusCode) -> errors.SplashError:
    """The error that `detail_of` described, as near as this version knows it.

    Args:
        detail: perhaps of a peer of another version.
        status: that came with it.
    """
    param = detail.param if detail.HasField("param") else None
    kind = _kind_of(detail) or _OF_STATUS.get(status, errors.Unavailable)
    if kind is errors.ContextTooLong:
        return errors.ContextTooLong(detail.message, param=param)
    if kind is errors.NotFound:
        return errors.NotFound(detail.message, param=param, code=detail.code)
    if kind is errors.InvalidRequest:
        return errors.InvalidRequest(detail.message, param=param, code=detail.code)
    if kind is errors.Overloaded:
        return errors.Overloaded(detail.message, retry_after_s=detail.retry_after_s)
    if kind is errors.Infeasible:
        error = errors.Infeasible(detail.message)
        error.nearest = detail.nearest if detail.HasField("nearest") else None
        return error
    return kind(detail.message)


def _kind_of(detail: common_pb2.ErrorDetail) -> type[errors.SplashError] | None:
    """The class that a detail names, or the finer one of its code; None where it is not known."""
    kind, finer = _KINDS.get(detail.kind), _CODES.get(detail.code)
    return finer if kind is not None and finer is not None and issubclass(finer, kind) else kind


async def abort(context: grpc.aio.ServicerContext, error: errors.SplashError) -> None:
    """End a call with an error of the tree (raises, so nothing after it runs)."""
    metadata = ((DETAIL_KEY, detail_of(error).SerializeToString()),)
    await context.abort(status_of(error), str(error), trailing_metadata=metadata)


def from_rpc_error(error: grpc.RpcError, *, peer: str) -> errors.SplashError:
    """The error that a call failed with, for the caller to raise.

    Args:
        error: as raised by the stub.
        peer: who was called, for messages; a bare connection error does not say.
    """
    if isinstance(error, grpc.aio.AioRpcError):
        # The stubs type metadata as a single pair; it is a sequence of pairs.
        metadata: Any = error.trailing_metadata() or ()
        for key, value in metadata:
            if key == DETAIL_KEY and isinstance(value, bytes):
                try:
                    return from_detail(common_pb2.ErrorDetail.FromString(value), error.code())
                except DecodeError:
                    break
        code, text = error.code(), error.details() or "no details"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.DeadlineExceeded(f"{peer} did not answer in time")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return errors.Overloaded(f"{peer}: {text}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return errors.InvalidRequest(f"{peer}: {text}")
        return errors.Unavailable(f"{peer} is not reachable: {code.name}: {text}")
    return errors.Unavailable(f"{peer} is not reachable: {error}")
