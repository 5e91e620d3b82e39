"""What a write may touch. Invariant: a descriptor that passed lies inside both memories, whole."""

from collections.abc import Sequence

from splash_core.errors import InvariantBroken
from splash_core.transport.base import Descriptor, Peer


def check_bounds(descriptors: Sequence[Descriptor], local_bytes: int, peer: Peer) -> None:
    """Return if all descriptors stay inside both memories.

    Args:
        descriptors: to be written.
        local_bytes: size of the local memory; transports themselves do not always look.
        peer: whose memory they are for.

    Raises:
        InvariantBroken: one does not; names the numbers.
    """
    for descriptor in descriptors:
        for side, offset, limit in (
            ("local", descriptor.src, local_bytes),
            (peer.address, descriptor.dst, peer.num_bytes),
        ):
            size = descriptor.num_bytes
            if offset < 0 or size < 0 or offset + size > limit:
                raise InvariantBroken(
                    f"{size} bytes at offset {offset} leave the {limit} bytes of {side} memory"
                )
