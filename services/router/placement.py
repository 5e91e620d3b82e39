"""Which prefill and which decode group a request goes to: a pure function with a recorded reason.

Invariant: among groups that are equally loaded the choice rotates, so no group is a favourite at low load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.router.admission import Demand, GroupLoad, Limits, has_room, pair_limits


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
    roomy = [pair for pair in pairs if has_room(pair.decode, demand, overcommit=overcommit)]
    if not roomy:
        best = min((pair.decode for pair in pairs), key=_use)
        return NoRoom(
            reason=f"{best.group} projects {best.kv_tokens_projected} of {best.kv_tokens_total} KV tokens, "
            f"this request {demand.kv_tokens} more"
        )
    decode = _rotate(_least([pair.decode for pair in roomy], _use), rotation)
    prefills = [pair.prefill for pair in roomy if pair.decode.address == decode.address]
    prefill = _rotate(_least(prefills, _pending), rotation)
    return Placement(
        prefill=prefill.address,
        decode=decode.address,
        max_model_len=pair_limits(prefill.limits, decode.limits).max_model_len,
        reason=f"{decode.group} projects {decode.kv_tokens_projected}/{decode.kv_tokens_total} KV tokens, "
        f"{prefill.group} has {prefill.prompt_tokens_pending} prompt tokens pending",
    )


def place_scoring(prefills: Sequence[GroupLoad], *, rotation: int) -> Placement:
    """The least loaded prefill group, for a prompt that is only scored.

    Args:
        prefills: ready groups that can hold the prompt, at least one.
        rotation: as for `place`.
    """
    prefill = _rotate(_least(prefills, _pending), rotation)
    reason = f"{prefill.group} has {prefill.prompt_tokens_pending} prompt tokens pending; nothing to decode"
    return Placement(
        prefill=prefill.address, decode=None, max_model_len=prefill.limits.max_model_len, reason=reason
    )


def _pending(load: GroupLoad) -> tuple[float, int]:
    return load.prompt_tokens_pending, load.sequences


def _use(load: GroupLoad) -> tuple[float, int]:
    return load.kv_tokens_projected / max(1, load.kv_tokens_total), load.sequences


def _least(loads: Sequence[GroupLoad], key: Callable[[GroupLoad], tuple[float, int]]) -> list[GroupLoad]:
    """All distinct loads whose key is the smallest, in a fixed order."""
    distinct = {load.address: load for load in loads}
    best = min(key(load) for load in distinct.values())
    return [load for _, load in sorted(distinct.items()) if key(load) == best]


def _rotate(loads: Sequence[GroupLoad], rotation: int) -> GroupLoad:
    return loads[rotation % len(loads)]
