"""Random little histories of a deployment, for hypothesis."""

from hypothesis import strategies as st

from splash_core.layout.layout import Layout
from splash_core.scheduling.roles import Role
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.group import Ask, Schedule, Turn

LAST_ARRIVAL = 12
LAST_TURN = 24


@st.composite
def _asks(draw: st.DrawFn) -> Ask:
    arrives = draw(st.integers(0, LAST_ARRIVAL))
    stays = draw(st.none() | st.integers(0, 20))
    return Ask(
        arrives=arrives,
        prompt=tuple(draw(st.lists(st.integers(3, 250), min_size=1, max_size=18))),
        sampling=SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.8])),
            seed=draw(st.integers(0, 3)),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
            max_tokens=draw(st.integers(1, 10)),
        ),
        cancelled=None if stays is None else arrives + stays,
    )


_turns = st.builds(
    Turn,
    tick=st.integers(0, LAST_TURN),
    phase=st.sampled_from([Role.PREFILL, Role.DECODE]),
    layout=st.sampled_from(Layout),
    mode=st.sampled_from(SwitchMode),
)

schedules = st.builds(
    Schedule,
    asks=st.lists(_asks(), min_size=1, max_size=5).map(tuple),
    turns=st.lists(_turns, min_size=1, max_size=6).map(tuple),
    layouts=st.tuples(st.sampled_from(Layout), st.sampled_from(Layout)),
    chunk_tokens=st.sampled_from([1, 3, 4, 7, 32]),
    overcommit=st.sampled_from([1.0, 2.0]),
)
"""Arrivals, chunk sizes, cancellations and switches of both phases at random steps, in both modes."""
