"""How every process of a deployment connects to a group's leader.

Invariant: a leader that comes back at its address is reached within a second, and one that has frozen is
noticed within seconds, by whoever calls it.
"""

import grpc.aio

from splash_core.rpc.keepalive import client_keepalive

MAX_MESSAGE_BYTES = 512 << 20

CHANNEL_OPTIONS = (
    # Prompt logprobs of a long prompt exceed gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Retries are the caller's: it knows what was already streamed or written.
    ("grpc.enable_retries", 0),
    # An own connection a channel: gRPC would share one whose backoff outlives a restart.
    ("grpc.use_local_subchannel_pool", 1),
    # Without bounds the pause between two tries to connect grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    # In spite of its name how long a try may take: a busy leader shakes hands late, and is not unavailable.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    *client_keepalive(),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to the leader at a gRPC address (`host:port` or `unix:path`)."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
