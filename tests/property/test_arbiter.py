"""What an arbitrated link keeps for every mixture of writers and switches, in time that the tests make."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.transport.classes import TrafficClass
from splash_core.transport.limits import LATE_S, SWITCH_SHARE, LinkLimits
from tests.support.link_world import Pause, World, Writer

CHUNK = 1000
CLASSES = st.sampled_from(list(TrafficClass))
TIMES = st.floats(0.0, 3.0, allow_nan=False)


@st.composite
def limits(draw: st.DrawFn) -> LinkLimits:
    return LinkLimits(
        rate_bps=draw(st.sampled_from([2_000.0, 10_000.0, 77_777.0])),
        chunk_bytes=CHUNK,
        in_flight=draw(st.integers(1, 3)),
        pause_s=draw(st.sampled_from([0.0, 0.05, 0.3])),
        handoff_patience_s=draw(st.sampled_from([0.1, 0.25])),
    )


@st.composite
def writers(draw: st.DrawFn) -> Writer:
    return Writer(
        traffic=draw(CLASSES),
        chunks=tuple(draw(st.lists(st.integers(1, CHUNK), min_size=1, max_size=8))),
        at=draw(TIMES),
        deadline_s=draw(st.sampled_from([0.2, 1.0, 30.0])),
        tells=draw(st.booleans()),
    )


@st.composite
def switches(draw: st.DrawFn) -> Pause:
    at = draw(TIMES)
    return Pause(at=at, until=at + draw(st.floats(0.0, 1.0)))


SPEEDS = st.sampled_from([500.0, 5_000.0, 200_000.0, float("inf")])


@settings(max_examples=40, deadline=None)
@given(
    limits=limits(),
    speed=SPEEDS,
    users=st.lists(writers(), min_size=1, max_size=6),
    pauses=st.lists(switches(), max_size=3),
)
def test_all_is_sent_within_the_budget_and_nothing_waits_without_a_reason(
    limits: LinkLimits, speed: float, users: list[Writer], pauses: list[Pause]
) -> None:
    world = World(limits, speed)
    world.play(users, pauses)  # looks at room and reasons after every event
    for number, writer in enumerate(users):
        assert world.bytes_of(number) == sum(writer.chunks)
    for first, begin in enumerate(world.sent):
        total = 0
        for entry in world.sent[first:]:
            total += entry.num_bytes
            assert total <= limits.burst_bytes + limits.rate_bps * (entry.time - begin.time) + 1e-3


@settings(max_examples=40, deadline=None)
@given(
    limits=limits(),
    urgent=st.integers(1, 3),
    lower=st.sampled_from([TrafficClass.HANDOFF, TrafficClass.PRECOPY]),
)
def test_no_class_starves_beyond_its_patience(limits: LinkLimits, urgent: int, lower: TrafficClass) -> None:
    above = [TrafficClass(level) for level in range(lower)]
    users = [Writer(traffic=traffic, chunks=(CHUNK,) * 200) for traffic in above for _ in range(urgent)]
    users.append(Writer(traffic=lower, chunks=(CHUNK,) * 3))
    world = World(limits)
    world.play(users)
    mine = [entry for entry in world.sent if entry.writer == len(users) - 1]
    # One chunk that was affordable before, and one of each class that is late as well.
    slack = (len(above) + 1) * CHUNK / limits.rate_bps
    assert all(e.time - e.since <= limits.patience_s(lower) + slack + 1e-6 for e in mine)
    assert len(mine) == 3


@settings(max_examples=40, deadline=None)
@given(limits=limits(), length=st.floats(0.01, 1.0), at=st.floats(0.1, 1.0))
def test_a_switch_holds_handoffs_no_longer_than_the_pause(
    limits: LinkLimits, length: float, at: float
) -> None:
    world = World(limits)
    needed = int((length + at + 1) * limits.rate_bps / CHUNK) + 10
    world.play(
        [Writer(traffic=TrafficClass.HANDOFF, chunks=(CHUNK,) * needed)], [Pause(at=at, until=at + length)]
    )
    longest = max(later.time - earlier.time for earlier, later in pairwise(world.sent))
    # Beyond the pause a chunk waits for its part of the budget, or for the switch to end.
    chunk_s = CHUNK / limits.rate_bps / (SWITCH_SHARE if limits.pause_s else 1.0)
    assert longest <= max(limits.pause_s, chunk_s) + chunk_s + 1e-6
    held = [e for e in world.sent if at < e.time < at + min(length, limits.pause_s) - 1e-6]
    assert held == []


@settings(max_examples=40, deadline=None)
@given(limits=limits(), sizes=st.lists(st.integers(CHUNK // 10, CHUNK), min_size=2, max_size=5))
def test_handoffs_share_by_bytes(limits: LinkLimits, sizes: list[int]) -> None:
    users = [Writer(traffic=TrafficClass.HANDOFF, chunks=(size,) * 400) for size in sizes]
    world = World(limits)
    world.play(users, until=60 * CHUNK / limits.rate_bps)
    sent = [world.bytes_of(number) for number in range(len(sizes))]
    # What is saved up goes as fast as it is asked for, so chunk by chunk.
    assert max(sent) - min(sent) <= 2 * CHUNK + LATE_S * limits.rate_bps


@settings(max_examples=60, deadline=None)
@given(
    limits=limits(),
    users=st.lists(
        st.builds(
            lambda chunks, at: Writer(traffic=TrafficClass.HANDOFF, chunks=(CHUNK,) * chunks, at=at),
            st.integers(1, 12),
            TIMES,
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_no_handoff_ends_later_than_if_all_shared(limits: LinkLimits, users: list[Writer]) -> None:
    apart, shared = World(limits), World(limits)
    apart.play([replace(user, tells=True) for user in users])
    shared.play(users)
    for number in range(len(users)):
        ends = [max(e.time for e in world.sent if e.writer == number) for world in (apart, shared)]
        # Sharing goes by whole chunks, too: somebody may be one ahead of where the sum says it is.
        assert ends[0] <= ends[1] + len(users) * CHUNK / limits.rate_bps + LATE_S + 1e-6


@settings(max_examples=40, deadline=None)
@given(limits=limits(), switch_flows=st.integers(1, 3))
def test_a_handoff_past_half_its_deadline_is_not_passed_over(limits: LinkLimits, switch_flows: int) -> None:
    users = [Writer(traffic=TrafficClass.SWITCH, chunks=(CHUNK,) * 100) for _ in range(switch_flows)]
    deadline_s = 40 * CHUNK / limits.rate_bps
    late = Writer(traffic=TrafficClass.HANDOFF, chunks=(CHUNK,) * 60, deadline_s=deadline_s)
    world = World(limits)
    world.play([*users, late], [Pause(at=0.0, until=1e3)], until=2 * deadline_s)
    half_s, turn_s = deadline_s / 2, 2 * (switch_flows + 1) * CHUNK / limits.rate_bps
    promoted = [e for e in world.sent if e.writer == switch_flows and e.time > half_s + 1e-6]
    assert all(e.time - max(e.since, half_s) <= turn_s + 1e-6 for e in promoted)
    assert promoted
