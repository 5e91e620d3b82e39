"""An error raised by a server arrives at its client as the same class with the same fields."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest

from splash_core import errors
from splash_core.pb import common_pb2, control_pb2, control_pb2_grpc
from splash_core.rpc.errors import abort, detail_of, from_detail, from_rpc_error, status_of

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION

CASES: list[tuple[errors.SplashError, grpc.StatusCode]] = [
    (errors.InvalidRequest("top_p 3", param="top_p", code="bad"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.ContextTooLong("9000 tokens", param="messages"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound("no model x", param="model", code="model_not_found"), grpc.StatusCode.NOT_FOUND),
    (errors.Overloaded("queue full", retry_after_s=2.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable("draining"), grpc.StatusCode.UNAVAILABLE),
    (errors.GroupFailed("rank 1 died"), grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExceeded("too late"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Blocked("pinned to TP"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Conflict("needs 3 slots, 1 free"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Infeasible("too long", nearest="4096"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.InvariantBroken("bug"), grpc.StatusCode.INTERNAL),
]


@pytest.mark.parametrize(("error", "status"), CASES, ids=lambda case: type(case).__name__)
def test_detail_rebuilds_the_error(error: errors.SplashError, status: grpc.StatusCode) -> None:
    assert status_of(error) is status
    rebuilt = from_detail(detail_of(error), status)
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)
    assert rebuilt.__dict__ == error.__dict__


def test_a_class_that_came_later_is_the_nearest_one_to_a_peer_of_the_version_before() -> None:
    detail = detail_of(errors.Blocked("pinned to TP"))
    assert (detail.kind, detail.code) == ("Conflict", "blocked")
    # And a peer that names the class itself is understood, too.
    by_name = from_detail(common_pb2.ErrorDetail(kind="Blocked", message="m"), FAILED_PRECONDITION)
    assert type(by_name) is errors.Blocked


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (FAILED_PRECONDITION, errors.Conflict),
        (grpc.StatusCode.INTERNAL, errors.InvariantBroken),
        (grpc.StatusCode.ABORTED, errors.Unavailable),
    ],
)
def test_a_class_of_a_newer_peer_is_what_its_status_says(
    status: grpc.StatusCode, kind: type[errors.SplashError]
) -> None:
    found = from_detail(common_pb2.ErrorDetail(kind="Later", message="m", code="later"), status)
    assert (type(found), str(found)) == (kind, "m")
    known = from_detail(common_pb2.ErrorDetail(kind="Conflict", message="m", code="later"), status)
    assert type(known) is errors.Conflict


class _Refusing(control_pb2_grpc.ControlServicer):
    def __init__(self, error: errors.SplashError) -> None:
        self._error = error

    async def Describe(
        self, request: control_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupDescription:
        del request
        await abort(context, self._error)
        raise AssertionError("abort returned")


async def _call(error: errors.SplashError) -> errors.SplashError:
    server = grpc.aio.server()
    control_pb2_grpc.add_ControlServicer_to_server(_Refusing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as raised:
                await control_pb2_grpc.ControlStub(channel).Describe(control_pb2.DescribeRequest())
            return from_rpc_error(raised.value, peer="decode-0")
    finally:
        await server.stop(None)


def test_fields_survive_a_real_call() -> None:
    # A thread of its own keeps the event loop away from whatever loop the test runner has.
    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(lambda: asyncio.run(_call(CASES[3][0]))).result()
    assert isinstance(arrived, errors.Overloaded)
    assert arrived.retry_after_s == 2.5
    assert str(arrived) == "queue full"


def test_a_class_of_a_newer_peer_is_what_its_status_says_in_a_real_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def newer(error: errors.SplashError) -> common_pb2.ErrorDetail:
        return common_pb2.ErrorDetail(kind="Later", message=str(error))

    monkeypatch.setattr("splash_core.rpc.errors.detail_of", newer)
    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(lambda: asyncio.run(_call(errors.Conflict("pinned")))).result()
    assert (type(arrived), str(arrived)) == (errors.Conflict, "pinned")


def test_a_dead_peer_is_unavailable_and_named() -> None:
    async def call() -> errors.SplashError:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(grpc.RpcError) as raised:
                await control_pb2_grpc.ControlStub(channel).Describe(control_pb2.DescribeRequest(), timeout=5)
            return from_rpc_error(raised.value, peer="decode-0")

    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(lambda: asyncio.run(call())).result()
    assert isinstance(arrived, errors.Unavailable)
    assert "decode-0" in str(arrived)
