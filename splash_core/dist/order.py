"""What ranks that are threads of one process wait for before they read what another one shows.

On a CPU, what a thread has computed is there. On a GPU it is only enqueued, on a stream of the thread's own, as
if ranks were processes. Invariant: what is read was written before, as the streams see it, and its memory is
not used anew before it was read. The host waits for nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

CPU = torch.device("cpu")


class Order(Protocol):
    """Of the work of threads that compute on one device; used by all of them."""

    def mark(self) -> Any:
        """A point after all that the calling thread has asked for so far."""
        ...

    def after(self, mark: Any, shown: Iterable[Tensor] = ()) -> None:
        """What the calling thread asks for from now on comes after a mark, and may read what was shown there."""
        ...


class HostOrder(Order):
    """Of threads that compute by themselves."""

    @override
    def mark(self) -> None:
        """As in `Order`."""

    @override
    def after(self, mark: Any, shown: Iterable[Tensor] = ()) -> None:
        """As in `Order`."""


class StreamOrder(Order):
    """Of threads that enqueue on streams of one GPU, each on its current one.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @override
    def mark(self) -> torch.cuda.Event:
        """As in `Order`."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @override
    def after(self, mark: Any, shown: Iterable[Tensor] = ()) -> None:
        """As in `Order`."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(mark)
        # Its owner may drop a tensor, and get its memory anew, before this stream has come to read it.
        with torch.inference_mode():
            for tensor in shown:
                tensor.record_stream(stream)


def order_on(device: torch.device) -> Order:
    """How threads that compute on a device are ordered."""
    return StreamOrder(device) if device.type == "cuda" else HostOrder()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A block in which the calling thread enqueues on a new stream of the device, if it is a GPU.

    It begins after all that was enqueued on the device before, and ends when its own work has.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()
