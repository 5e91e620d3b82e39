"""Transports of the end-to-end suite: what moves pages, or ends in the middle of it, runs over both.

Tests of HTTP, of the policy and of the demo run over Mooncake alone: `make demo` and the others serve over
shared memory.
"""

import pytest


@pytest.fixture(scope="module", params=("shm", "mooncake"))
def transport(request: pytest.FixtureRequest) -> str:
    """How pages cross between the groups that a test starts."""
    return str(request.param)
