"""A replayed step's indices land where the captured step's were."""

import numpy as np
import pytest
import torch

from splash_core.errors import InvariantBroken
from splash_core.kernels.uploads import StepBuffer

CPU = torch.device("cpu")


def test_a_round_repeats_addresses_and_carries_new_values() -> None:
    buffer = StepBuffer(CPU, 1024)
    addresses = []
    for shift in range(3):
        buffer.begin()
        values = (
            np.arange(5) + shift,
            np.array([[True, False], [False, shift > 0]]),
            np.empty((0, 3), dtype=np.int64),
            np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2] + shift,
        )
        places = [buffer.put(value) for value in values]
        buffer.commit()
        for place, value in zip(places, values, strict=True):
            assert np.array_equal(place.numpy(), value)
            assert place.data_ptr() % 16 == 0
        addresses.append([place.data_ptr() for place in places])
    assert addresses[0] == addresses[1] == addresses[2]


def test_a_round_that_differs_is_refused() -> None:
    buffer = StepBuffer(CPU, 64)
    buffer.begin()
    buffer.put(np.arange(4))
    buffer.commit()
    buffer.begin()
    with pytest.raises(InvariantBroken, match="captured was int64 \\(4,\\)"):
        buffer.put(np.arange(5))
    buffer.begin()
    with pytest.raises(InvariantBroken, match="has 0 tensors"):
        buffer.commit()
    buffer.begin()
    buffer.put(np.arange(4))
    with pytest.raises(InvariantBroken, match="more tensors"):
        buffer.put(np.arange(4))
    with pytest.raises(InvariantBroken, match="more than 64 bytes"):
        StepBuffer(CPU, 64).put(np.arange(9))
