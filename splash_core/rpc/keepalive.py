"""How both ends of a connection notice that the other one has stopped without closing it.

A frozen process, a lost host and a cut network all keep a connection open and silent. Invariant: a caller
whose leader is silent hears `UNAVAILABLE` within about ten seconds; a leader frees what a silent caller held
within about forty. gRPC's own threads answer these pings, so a busy event loop is not taken for a frozen one.
"""

Options = tuple[tuple[str, int], ...]


def client_keepalive(*, silence_s: float = 4.0, answer_s: float = 6.0) -> Options:
    """Channel options of a caller.

    Args:
        silence_s: after so long without a byte of a running call, a ping is sent, in seconds.
        answer_s: without an answer by then, the connection and its calls end.
    """
    return (
        ("grpc.keepalive_time_ms", round(silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(answer_s * 1000)),
        # Pings have a timeout of their own, a minute by default; the shorter of the two does not win.
        ("grpc.http2.ping_timeout_ms", round(answer_s * 1000)),
        # Else the third ping of a call that waits for its first token is held back for minutes.
        ("grpc.http2.max_pings_without_data", 0),
    )


def server_keepalive(*, silence_s: float = 20.0, answer_s: float = 20.0) -> Options:
    """Options of a leader's server; the arguments are those of `client_keepalive`."""
    return (
        ("grpc.keepalive_time_ms", round(silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(answer_s * 1000)),
        ("grpc.http2.ping_timeout_ms", round(answer_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # A server's default hangs up on callers that ping more often than every five minutes.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        # Pings sent far apart arrive close together at a leader that was held up. Hanging up on the third, as
        # by default, would end every call of a caller that did nothing wrong.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    )
