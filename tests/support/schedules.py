"""Random little histories of a deployment, for hypothesis."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.roles import Role
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.group import Ask, Schedule, Turn


@dataclass(frozen=True, kw_only=True)
class Size:
    """How long a history may be."""

    requests: int
    prompt: int
    output: tuple[int, int]
    """Fewest and most."""
    last_arrival: int
    last_turn: int


ORDINARY = Size(requests=6, prompt=14, output=(5, 14), last_arrival=6, last_turn=24)
SHORT = Size(requests=3, prompt=9, output=(1, 5), last_arrival=4, last_turn=9)
"""For ranks whose collectives take milliseconds."""


@st.composite
def _asks(draw: st.DrawFn, size: Size) -> Ask:
    arrives = draw(st.integers(0, size.last_arrival))
    stays = draw(st.none() | st.integers(0, size.last_turn))
    return Ask(
        arrives=arrives,
        prompt=tuple(draw(st.lists(st.integers(3, 250), min_size=1, max_size=size.prompt))),
        sampling=SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.8])),
            seed=draw(st.integers(0, 3)),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
            max_tokens=draw(st.integers(*size.output)),
        ),
        cancelled=None if stays is None else arrives + stays,
    )


def schedules(size: Size, layouts: Sequence[Layout] = STANDARD_LAYOUTS) -> st.SearchStrategy[Schedule]:
    """Arrivals, chunk sizes, cancellations and switches of both phases at random steps, in all modes."""
    turns = st.builds(
        Turn,
        tick=st.integers(0, size.last_turn),
        phase=st.sampled_from([Role.PREFILL, Role.DECODE]),
        layout=st.sampled_from(layouts),
        mode=st.sampled_from(SwitchMode),
    )
    return st.builds(
        Schedule,
        asks=st.lists(_asks(size), min_size=1, max_size=size.requests).map(tuple),
        turns=st.lists(turns, min_size=1, max_size=6).map(tuple),
        layouts=st.tuples(st.sampled_from(layouts), st.sampled_from(layouts)),
        chunk_tokens=st.sampled_from([1, 3, 4, 7, 32]),
        overcommit=st.sampled_from([1.0, 2.0]),
    )
