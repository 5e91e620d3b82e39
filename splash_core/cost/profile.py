"""θ: the hardware constants of one deployment, versioned, with their provenance.

Invariant: a profile that loads is usable. Every field is checked, and an error names the field. A constant is
declared here and nowhere else: its annotation (`cost.theta`) says how it is read, fitted and shown.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, cast

from splash_core.cost.json_fields import (
    count,
    fraction,
    json_object,
    non_negative,
    number,
    positive,
    text_of,
)
from splash_core.cost.links import Collective, CollectiveLoad, LinkRate, message_s
from splash_core.cost.theta import Constant, Count, Given, Link, Overhead, Part, Rate, constants_of
from splash_core.errors import ConfigError
from splash_core.spec.fields import check_version
from splash_core.spec.hardware import GpuSpec

PROFILE_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the constants come from."""

    source: str
    """`analytical` or `measured`."""
    machine: str = ""
    date: str = ""
    note: str = ""
    commit: str = ""
    model: str = ""
    """What was measured."""
    shape: Mapping[str, int] = field(default_factory=dict[str, int])
    """Dimensions of its layers (`cost.measured_on`); empty where nobody wrote them down."""
    residuals: Mapping[str, float] = field(default_factory=dict[str, float])
    """Median relative error of held-out steps by `phase/layout`; empty when nothing was fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """θ for one rank of a group, in one element type; docs/model.md §6. Rates are attainable, not peak."""

    name: str
    dtype: str
    device: str
    """`cpu` or `cuda`."""
    ranks: Annotated[int, Count()] = 0
    """Of the group that was measured; 0: of any."""
    flops: Annotated[float, Rate("products")]
    """FLOP/s of matrix multiplies."""
    expert_flops: Annotated[float, Rate("experts")]
    """FLOP/s of routed experts' products."""
    attention_flops: Annotated[float, Rate("attention, absorbed")]
    """FLOP/s of absorbed attention when bound by compute."""
    expanded_flops: Annotated[float, Rate("attention, expanded")]
    """The same of expanded attention, without making keys and values."""
    weight_read_bps: Annotated[float, Rate("weights")]
    kv_read_bps: Annotated[float, Rate("KV")]
    link_bps: Annotated[float, Link()]
    """Bytes received per second by a rank in a large collective."""
    collective_latency_s: Annotated[float, Link()]
    """α: time of an empty collective."""
    collectives: Mapping[str, tuple[LinkRate, ...]] = field(default_factory=dict[str, tuple[LinkRate, ...]])
    """The two by kind and size, ascending; other kinds have `collective_latency_s` and `link_bps`."""
    overlap: Annotated[float, Part("overlap")] = 1.0
    """Of the shorter of computing and reading, the part that hides behind the longer."""
    layer_overhead_s: Annotated[float, Overhead(shown="per layer", first=1.0)] = 0.0
    eager_layer_s: Annotated[float, Overhead(shown="more in prefill", first=1.0)] = 0.0
    """Launching a layer of a step that is not replayed; hides as `overlap` says. On CPUs: more of a step that
    is not all decode rows, as those are launched and replayed alike."""
    step_overhead_s: Annotated[float, Overhead(shown="per step", first=10.0)] = 0.0
    meet_s: Annotated[float, Overhead(shown="per collective", first=0.1)] = 0.0
    """Per collective of a step beside its own time: packing rows, waiting for the slowest rank."""
    run_s: Annotated[float, Overhead(shown="per layer and run", first=0.25)] = 0.0
    """Per layer and run: several rows of one request on one rank."""
    head_s: Annotated[float, Overhead(shown="per layer, row and head", first=0.0005)] = 0.0
    """Per layer and head of a row for which a rank makes queries: rotations, copies, merging."""
    row_s: Annotated[float, Overhead(shown="per layer and row", first=0.005)] = 0.0
    """Per layer and row at home: norms, rotations, residuals."""
    merge_s: Annotated[float, Overhead(shown="per layer that merges", first=0.25)] = 0.0
    """Per layer in which ranks attend over parts of a history and rows are merged at home."""
    part_s: Annotated[float, Overhead(shown="per layer and part of a head", first=0.0005)] = 0.0
    """The same per head of a row that a rank attends for: packing parts, sending them home, merging."""
    draw_s: Annotated[float, Overhead(shown="per token drawn", first=0.5)] = 0.0
    """Per token drawn on a rank."""
    interference: Annotated[float, Given()] = 0.0
    """Seconds of slow-down per second of transfer hidden behind computation (`cost.interference`)."""
    served_step_s: Annotated[float, Given()] = 0.0
    """Per step in service: by what leader, router and clients on the host make it longer (`cost.served`)."""
    served_token_s: Annotated[float, Given()] = 0.0
    """The same per token drawn, on all ranks together."""
    sparse_head_tile: Annotated[int, Count()] = 1
    """Heads that a sparse attention kernel computes at least, though fewer may be asked for."""
    dense_expert_rows: Annotated[int, Count()] = 0
    """Most rows of a step for which every local expert computes every row; 0: only chosen ones, always."""
    memory_bytes: Annotated[int, Count()] = 0
    """Device memory per rank; 0 when not known."""
    provenance: Provenance = Provenance(source="analytical")

    def roofline(self, compute_s: float, read_s: float) -> float:
        """Time of an operation that computes and reads."""
        return max(compute_s, read_s) + (1 - self.overlap) * min(compute_s, read_s)

    def messages_s(self, messages: Iterable[CollectiveLoad]) -> float:
        """Time of a step's collectives, one after the other."""
        return sum(
            message_s(self.rates(message.kind), message) + message.count * self.meet_s for message in messages
        )

    def rates(self, kind: Collective) -> tuple[LinkRate, ...]:
        """Of one kind of collective, by size."""
        one = (LinkRate(latency_s=self.collective_latency_s, bps=self.link_bps),)
        return self.collectives.get(kind, one)

    def check_group(self, *, device: str, dtype: str, ranks: int) -> None:
        """Refuse a profile of other devices, another element type or number of ranks than a group's.

        Raises:
            ConfigError: names both values and the remedy.
        """
        of_group: dict[str, tuple[object, object]] = {
            "device": (self.device, device),
            "dtype": (self.dtype, dtype),
            "ranks": (self.ranks or ranks, ranks),
        }
        for name, (mine, wanted) in of_group.items():
            if mine != wanted:
                raise ConfigError(
                    f"profile {self.name} is for {name} {mine}, the group has {name} {wanted}; give one "
                    f"that `splash calibrate --{name} {wanted}` writes, or leave --profile out"
                )

    def to_json(self) -> str:
        """The profile as an indented JSON object."""
        return json.dumps({"version": PROFILE_VERSION, **asdict(self)}, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "HardwareProfile":
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not JSON, another version, or a bad field, which is named.
        """
        values = json_object(text)
        check_version(
            values.pop("version", None),
            reads=PROFILE_VERSION,
            what="the profile",
            remedy="run `splash calibrate` again",
        )
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"profile field {name}: unknown; known: {', '.join(sorted(known))}")
        provenance = _provenance(values.pop("provenance", None))
        checked: dict[str, Any] = {name: text_of(values, name) for name in ("name", "dtype", "device")}
        for name, constant in constants_of(cls).items():
            if name in values or isinstance(constant, Rate | Link):
                checked[name] = _READ[type(constant)](values, name)
        return cls(collectives=_collectives(values.get("collectives", {})), provenance=provenance, **checked)


_NOTES = ("machine", "date", "note", "commit", "model")
_READ: Mapping[type[Constant], Callable[[Mapping[str, Any], str], float]] = {
    Rate: positive,
    Link: positive,
    Overhead: non_negative,
    Given: non_negative,
    Part: fraction,
    Count: count,
}


def analytical_profile(gpu: GpuSpec, *, dtype: str) -> HardwareProfile:
    """θ from a device's figures, for weights of type `dtype`.

    Raises:
        ConfigError: the device has no rate for `dtype`; lists those it has.
    """
    rates = gpu.rates(dtype)
    if rates is None:
        raise ConfigError(f"{gpu.name} has no rate for {dtype!r}; choose one of {', '.join(gpu.flops)}")
    return HardwareProfile(
        name=gpu.name,
        dtype=dtype,
        device="cpu" if gpu.name == "cpu" else "cuda",
        flops=rates[0],
        attention_flops=rates[1],
        expanded_flops=rates[1],
        expert_flops=rates[0],
        weight_read_bps=gpu.weight_read_bps,
        kv_read_bps=gpu.kv_read_bps,
        link_bps=gpu.link_bps,
        collective_latency_s=gpu.collective_latency_s,
        layer_overhead_s=gpu.layer_overhead_s,
        interference=gpu.interference,
        sparse_head_tile=gpu.sparse_head_tile,
        memory_bytes=gpu.memory_bytes,
        provenance=Provenance(source="analytical", machine=gpu.name, note=gpu.provenance),
    )


def _provenance(value: object) -> Provenance:
    if not isinstance(value, dict):
        raise ConfigError("profile field provenance: an object with at least `source` is required")
    values = cast("dict[str, Any]", value)
    known = {item.name for item in fields(Provenance)}
    for name in values:
        if name not in known:
            raise ConfigError(f"profile field provenance.{name}: unknown; known: {', '.join(sorted(known))}")
    source = text_of(values, "source", where="provenance.")
    if source not in ("analytical", "measured"):
        raise ConfigError(f"profile field provenance.source: {source!r} is neither analytical nor measured")
    residuals, shape = (_numbers(values, name) for name in ("residuals", "shape"))
    return Provenance(
        source=source,
        **{name: text_of(values, name, where="provenance.") for name in _NOTES if name in values},
        residuals={name: number(residuals, name, where="provenance.residuals.") for name in residuals},
        shape={name: count(shape, name, where="provenance.shape.") for name in shape},
    )


def _numbers(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"profile field provenance.{name}: must be an object of numbers")
    return cast("dict[str, Any]", found)


def _collectives(value: object) -> dict[str, tuple[LinkRate, ...]]:
    where = "collectives."
    if not isinstance(value, dict):
        raise ConfigError("profile field collectives: must be an object with a list of rates for each kind")
    kinds = cast("dict[str, Any]", value)
    for kind, rates in kinds.items():
        if kind not in tuple(Collective):
            raise ConfigError(f"profile field {where}{kind}: unknown; known: {', '.join(Collective)}")
        entries = cast("list[Any]", rates) if isinstance(rates, list) else []
        if not entries or not all(isinstance(rate, dict) for rate in entries):
            raise ConfigError(f"profile field {where}{kind}: a list of at least one rate is required")
    return {kind: tuple(_rate(rate, f"{where}{kind}.") for rate in rates) for kind, rates in kinds.items()}


def _rate(values: Mapping[str, Any], where: str) -> LinkRate:
    return LinkRate(
        latency_s=non_negative(values, "latency_s", where=where),
        bps=positive(values, "bps", where=where),
        most_bytes=non_negative(values, "most_bytes", where=where) if "most_bytes" in values else 0.0,
    )
