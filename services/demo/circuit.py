"""The order of the demo's switches: every directed pair of layouts once, ending where it began."""

import itertools
from collections.abc import Hashable, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def directed_circuit(nodes: Sequence[N], start: N) -> tuple[tuple[N, N], ...]:
    """All ordered pairs of distinct nodes as one closed walk from `start` (Hierholzer's algorithm).

    Every node of the complete directed graph has as many edges in as out, so the walk exists.
    """
    unused = {node: [other for other in reversed(nodes) if other != node] for node in nodes}
    stack, walk = [start], []
    while stack:
        node = stack[-1]
        if unused[node]:
            stack.append(unused[node].pop())
        else:
            walk.append(stack.pop())
    walk.reverse()
    return tuple(itertools.pairwise(walk))
