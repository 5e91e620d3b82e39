"""The thread-safe side of a link: who is woken, in which order turns come, and what is counted."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from splash_core.errors import ConfigError, InvariantBroken
from splash_core.transport.classes import TrafficClass
from splash_core.transport.limits import LinkLimits
from splash_core.transport.link import BandwidthArbiter, RankLinks
from splash_core.units import KIB, MIB
from tests.support.flows import may_go
from tests.support.rank_configs import rank_config

CHUNK = 1000


class Clock:
    """Time that tests make."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def link_at(
    rate_bps: float = 1e6, *, in_flight: int = 1, pause_s: float = 0.5
) -> tuple[BandwidthArbiter, Clock]:
    clock = Clock()
    limits = LinkLimits(rate_bps=rate_bps, chunk_bytes=CHUNK, in_flight=in_flight, pause_s=pause_s)
    return BandwidthArbiter(limits, clock=clock), clock


def test_turns_come_in_order_of_class_and_a_sleeper_is_woken() -> None:
    link, _ = link_at(rate_bps=math.inf)
    woken: list[str] = []
    slow = link.flow(TrafficClass.PRECOPY, wake=lambda: woken.append("slow"))
    fast = link.flow(TrafficClass.HANDOFF, wake=lambda: woken.append("fast"))
    slow.want(CHUNK)
    assert may_go(slow)
    slow.want(CHUNK)
    fast.want(CHUNK)
    assert not may_go(slow)
    assert not may_go(fast)
    slow.sent()
    assert woken == ["fast"]
    assert link.first([slow, fast]) is fast
    assert not may_go(fast)  # told once
    fast.close()
    assert woken == ["fast", "slow"]
    assert may_go(slow)


def test_a_switch_holds_until_the_pause_is_spent_or_it_ends() -> None:
    link, clock = link_at()
    flow = link.flow(TrafficClass.HANDOFF)
    with link.switching():
        flow.want(CHUNK)
        assert not may_go(flow)
        assert link.delay_s() == pytest.approx(0.25)  # its patience; the pause goes on after it
        clock.now += 0.5
        assert may_go(flow)
        flow.sent()
    clock.now += 0.2
    with link.switching():
        flow.want(CHUNK)
        assert not may_go(flow)
    assert may_go(flow)  # held for no longer than the switch


def test_the_budget_is_kept_and_collectives_count() -> None:
    link, clock = link_at(rate_bps=10 * CHUNK)
    flow = link.flow(TrafficClass.HANDOFF)
    flow.want(CHUNK)
    assert may_go(flow)
    flow.sent()
    link.charge(TrafficClass.PRECOPY, 5 * CHUNK)  # no more than a burst is owed
    flow.want(CHUNK)
    assert not may_go(flow)
    assert link.delay_s() == pytest.approx(0.2)
    clock.now += 0.2
    assert may_go(flow)
    use = link.use()
    assert use[TrafficClass.HANDOFF].num_bytes == 2 * CHUNK
    assert use[TrafficClass.HANDOFF].waits == 1
    assert use[TrafficClass.HANDOFF].wait_s == pytest.approx(0.2)
    assert use[TrafficClass.PRECOPY].num_bytes == 5 * CHUNK


def test_near_a_switch_one_chunk_is_under_way() -> None:
    link, _ = link_at(rate_bps=math.inf, in_flight=2)
    flow = link.flow(TrafficClass.HANDOFF)
    other = link.flow(TrafficClass.HANDOFF)
    link.announce("a group", near=True)
    flow.want(CHUNK)
    other.want(CHUNK)
    assert may_go(flow)
    assert not may_go(other)
    link.announce("a group", near=False)
    assert may_go(other)


def test_a_chunk_that_a_peer_keeps_holds_nobody_up() -> None:
    link, clock = link_at(rate_bps=math.inf)
    stuck, other = link.flow(TrafficClass.HANDOFF), link.flow(TrafficClass.HANDOFF)
    stuck.want(CHUNK)
    assert may_go(stuck)
    other.want(CHUNK)
    assert not may_go(other)
    clock.now += link.delay_s()
    while not may_go(other):
        clock.now += link.delay_s()
    assert clock.now <= 5.0 + 1.0 + 1e-6


def test_what_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigError, match="rate_bps of a link must be above 0, got 0"):
        LinkLimits(rate_bps=0)
    with pytest.raises(ConfigError, match="pause_s"):
        LinkLimits(pause_s=float("inf"))
    link, _ = link_at()
    with pytest.raises(InvariantBroken, match="a chunk of 1001 bytes; the link takes 1 to 1000"):
        link.flow(TrafficClass.HANDOFF).want(CHUNK + 1)


def test_collectives_share_links_on_cpus_only() -> None:
    limits = {"phase": LinkLimits(rate_bps=1e9), "host": LinkLimits()}
    cpu, gpu = RankLinks.of("cpu", **limits), RankLinks.of("cuda", **limits)
    assert cpu.group == (cpu.phase, cpu.host)
    assert gpu.phase not in gpu.group
    assert gpu.host not in gpu.group


def test_a_budget_makes_pieces_short_and_its_own_host_has_none(tmp_path: Path) -> None:
    config = rank_config(tmp_path, tmp_path, link_bytes_per_s=20e6)
    assert config.link_limits.rate_bps == 20e6
    assert (config.link_limits.chunk_bytes, config.link_limits.in_flight) == (100_000, 4)
    assert (config.host_limits.chunk_bytes, config.host_limits.in_flight) == (MIB, 4)
    assert config.host_limits.rate_bps == math.inf
    slow, fast = replace(config, link_bytes_per_s=1e6), replace(config, link_bytes_per_s=50e9)
    assert (slow.link_limits.chunk_bytes, slow.link_limits.in_flight) == (64 * KIB, 2)
    assert (fast.link_limits.chunk_bytes, fast.link_limits.in_flight) == (MIB, 4)


def test_writes_of_known_length_go_one_after_the_other_and_a_short_one_overtakes() -> None:
    link, _ = link_at(rate_bps=math.inf)
    flows = {name: link.flow(TrafficClass.HANDOFF, num_bytes=8 * CHUNK) for name in "ab"}
    left, went = {"a": 8, "b": 8}, ""
    while any(left.values()):
        if len(went) == 4:
            flows["c"], left["c"] = link.flow(TrafficClass.HANDOFF, num_bytes=CHUNK), 1
        for name in (name for name, count in left.items() if count):
            flows[name].want(CHUNK)
        if went:
            flows[went[-1]].sent()  # whoever sends asks for its next chunk meanwhile
        chosen = link.first(flows.values())
        went += next(name for name, flow in flows.items() if flow is chosen)
        left[went[-1]] -= 1
    assert went == "aaaa" + "c" + "aaaa" + "b" * 8


def test_beyond_its_pause_a_switch_leaves_handoffs_an_eighth_of_the_budget() -> None:
    link, clock = link_at(rate_bps=10 * CHUNK, pause_s=0.5)
    flow = link.flow(TrafficClass.HANDOFF)
    with link.switching():
        flow.want(CHUNK)
        clock.now += 0.5
        assert may_go(flow)
        flow.sent()
        began = clock.now
        flow.want(CHUNK)
        while not may_go(flow):
            clock.now += link.delay_s()
        assert clock.now - began == pytest.approx(0.8)
        flow.sent()
        flow.want(CHUNK)
    began = clock.now
    while not may_go(flow):
        clock.now += link.delay_s()
    assert clock.now - began == pytest.approx(0.1)  # over: the whole budget again
