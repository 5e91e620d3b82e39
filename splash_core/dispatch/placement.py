"""Which prefill and which decode group a request goes to: a pure function with a recorded reason.

Invariant: among groups that are equally loaded the choice rotates, so no group is a favourite at low load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splash_core.dispatch.admission import Demand, GroupLoad, Limits, has_room, pair_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The chosen pair (addresses of the leaders) and why."""

    prefill: str
    decode: str | None
    """None for a request that only scores its prompt."""
    max_model_len: int
    """Context of the two, tokens."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """Workers are there, but no decode group can hold the request now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prefill group that can hand its KV to a decode group."""

    prefill: GroupLoad
    decode: GroupLoad

    @property
    def names(self) -> tuple[str, str]:
        """Of the two groups."""
        return self.prefill.group, self.decode.group

    @property
    def limits(self) -> Limits:
        """How long a request the two can ever serve."""
        return pair_limits(self.prefill.limits, self.decode.limits)


def place(
    pairs: Sequence[Pair], demand: Demand, *, rotation: int, overcommit: float = 1.0
) -> Placement | NoRoom:
    """Choose the decode group with the least projected use that has room, and its least loaded prefill group.

    Args:
        pairs: compatible pairs of ready groups that can hold the request, at least one.
        demand: of the request.
        rotation: counts placements; decides between equals.
        overcommit: see `has_room`.
    """
    decode = choose_decode([pair.decode for pair in pairs], demand, rotation=rotation, overcommit=overcommit)
    if isinstance(decode, NoRoom):
        return decode
    prefills = [pair.prefill for pair in pairs if pair.decode.address == decode.address]
    prefill = choose_prefill(prefills, rotation=rotation)
    return Placement(
        prefill=prefill.address,
        decode=decode.address,
        max_model_len=pair_limits(prefill.limits, decode.limits).max_model_len,
        reason=f"{decode.group} projects {decode.kv_tokens_projected}/{decode.kv_tokens_total} KV tokens, "
        f"{prefill.group} has {prefill.prompt_tokens_pending} prompt tokens pending",
    )


def covering(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Few of the pairs in which each of their groups takes part, in a fixed order."""
    left = sorted(pairs, key=lambda pair: pair.names)
    missing = {group for pair in left for group in _addresses(pair)}
    chosen: list[Pair] = []
    while missing:
        best = max(left, key=lambda pair: len(missing & _addresses(pair)))
        chosen.append(best)
        missing -= _addresses(best)
    return tuple(chosen)


def choose_decode(
    loads: Sequence[GroupLoad], demand: Demand, *, rotation: int, overcommit: float = 1.0
) -> GroupLoad | NoRoom:
    """The decode group with the least projected use, of those that have room.

    Args:
        loads: of the groups that can hold the request, at least one.
        demand: of the request.
        rotation: counts placements; decides between equals.
        overcommit: see `has_room`.
    """
    roomy = [load for load in loads if has_room(load, demand, overcommit=overcommit)]
    if not roomy:
        best = min(loads, key=_use)
        return NoRoom(
            reason=f"{best.group} projects {best.kv_tokens_projected} of {best.kv_tokens_total} KV tokens, "
            f"this request {demand.kv_tokens} more"
        )
    return _rotate(_least(roomy, _use), rotation)


def choose_prefill(loads: Sequence[GroupLoad], *, rotation: int) -> GroupLoad:
    """The prefill group with the fewest prompt tokens pending; `loads` has at least one."""
    return _rotate(_least(loads, _pending), rotation)


def place_scoring(prefills: Sequence[GroupLoad], *, rotation: int) -> Placement:
    """The least loaded prefill group, for a prompt that is only scored.

    Args:
        prefills: ready groups that can hold the prompt, at least one.
        rotation: as for `place`.
    """
    prefill = choose_prefill(prefills, rotation=rotation)
    reason = f"{prefill.group} has {prefill.prompt_tokens_pending} prompt tokens pending; nothing to decode"
    return Placement(
        prefill=prefill.address, decode=None, max_model_len=prefill.limits.max_model_len, reason=reason
    )


def _addresses(pair: Pair) -> set[str]:
    return {pair.prefill.address, pair.decode.address}


def _pending(load: GroupLoad) -> tuple[float, int]:
    return load.prompt_tokens_pending, load.sequences


def _use(load: GroupLoad) -> tuple[float, int]:
    return load.kv_tokens_projected / max(1, load.kv_tokens_total), load.sequences


def _least(loads: Sequence[GroupLoad], key: Callable[[GroupLoad], tuple[float, int]]) -> list[GroupLoad]:
    """All distinct loads whose key is the smallest, in a fixed order."""
    keyed = {load.address: (key(load), load) for load in loads}
    best = min(rank for rank, _ in keyed.values())
    return [load for _, (rank, load) in sorted(keyed.items()) if rank == best]


def _rotate(loads: Sequence[GroupLoad], rotation: int) -> GroupLoad:
    return loads[rotation % len(loads)]
