"""θ: the hardware constants of one deployment, versioned, with their provenance.

Invariant: a profile that loads is usable. Every field is checked, and an error names the field.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.spec.hardware import GpuSpec

PROFILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the constants come from."""

    source: str
    """`analytical` or `measured`."""
    machine: str = ""
    date: str = ""
    note: str = ""
    residuals: Mapping[str, float] = field(default_factory=dict[str, float])
    """Relative fit error per constant; empty when nothing was fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """θ for one rank of a group, in one element type. Rates are attainable, not peak."""

    name: str
    dtype: str
    flops: float
    """FLOP/s of matrix multiplies."""
    attention_flops: float
    """FLOP/s of attention when bound by compute."""
    weight_read_bps: float
    kv_read_bps: float
    link_bps: float
    """Bytes received per second by a rank in a large collective."""
    collective_latency_s: float
    """α: time of an empty collective."""
    layer_overhead_s: float = 0.0
    step_overhead_s: float = 0.0
    interference: float = 0.0
    """Seconds of slow-down per second of transfer hidden behind computation."""
    sparse_head_tile: int = 1
    """Heads that a sparse attention kernel computes at least, though fewer may be asked for."""
    memory_bytes: int = 0
    """Device memory per rank; 0 when not known."""
    provenance: Provenance = Provenance(source="analytical")

    def to_json(self) -> str:
        """The profile as an indented JSON object."""
        return json.dumps({"version": PROFILE_VERSION, **asdict(self)}, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "HardwareProfile":
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not JSON, another version, or a bad field, which is named.
        """
        values = _object(text)
        version = values.pop("version", None)
        if version != PROFILE_VERSION:
            raise ConfigError(
                f"profile field version: {version!r} is not {PROFILE_VERSION}; run `splash calibrate` again"
            )
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"profile field {name}: unknown; known: {', '.join(sorted(known))}")
        provenance = _provenance(values.pop("provenance", None))
        rates = {name: _positive(values, name) for name in _RATES}
        extras = {name: _non_negative(values, name) for name in _EXTRAS if name in values}
        counts = {name: int(_non_negative(values, name)) for name in _COUNTS if name in values}
        return cls(
            name=_text(values, "name"),
            dtype=_text(values, "dtype"),
            sparse_head_tile=counts.get("sparse_head_tile", 1),
            memory_bytes=counts.get("memory_bytes", 0),
            provenance=provenance,
            **rates,
            **extras,
        )


_RATES = ("flops", "attention_flops", "weight_read_bps", "kv_read_bps", "link_bps", "collective_latency_s")
_NOTES = ("machine", "date", "note")
_COUNTS = ("sparse_head_tile", "memory_bytes")
_EXTRAS = ("layer_overhead_s", "step_overhead_s", "interference")


def analytical_profile(gpu: GpuSpec, *, dtype: str) -> HardwareProfile:
    """θ from a device's figures, for weights of type `dtype`.

    Raises:
        ConfigError: the device has no rate for `dtype`; lists those it has.
    """
    rate = gpu.flops.get(dtype)
    if rate is None:
        raise ConfigError(f"{gpu.name} has no rate for {dtype!r}; choose one of {', '.join(gpu.flops)}")
    return HardwareProfile(
        name=gpu.name,
        dtype=dtype,
        flops=rate,
        attention_flops=gpu.attention_flops[dtype],
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


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"profile is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"profile must be a JSON object, got {type(values).__name__}")
    return cast("dict[str, Any]", values)


def _provenance(value: object) -> Provenance:
    if not isinstance(value, dict):
        raise ConfigError("profile field provenance: an object with at least `source` is required")
    values = cast("dict[str, Any]", value)
    known = {item.name for item in fields(Provenance)}
    for name in values:
        if name not in known:
            raise ConfigError(f"profile field provenance.{name}: unknown; known: {', '.join(sorted(known))}")
    source = _text(values, "source", where="provenance.")
    if source not in ("analytical", "measured"):
        raise ConfigError(f"profile field provenance.source: {source!r} is neither analytical nor measured")
    residuals = values.get("residuals", {})
    if not isinstance(residuals, dict):
        raise ConfigError("profile field provenance.residuals: must be an object of numbers")
    entries = cast("dict[str, Any]", residuals)
    return Provenance(
        source=source,
        **{name: _text(values, name, where="provenance.") for name in _NOTES if name in values},
        residuals={name: _number(entries, name, where="provenance.residuals.") for name in entries},
    )


def _text(values: Mapping[str, Any], name: str, *, where: str = "") -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"profile field {where}{name}: text is required, got {value!r}")
    return value


def _number(values: Mapping[str, Any], name: str, *, where: str = "") -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"profile field {where}{name}: a finite number is required, got {value!r}")
    return float(value)


def _positive(values: Mapping[str, Any], name: str) -> float:
    value = _number(values, name)
    if value <= 0:
        raise ConfigError(f"profile field {name}: must be above 0, got {value}")
    return value


def _non_negative(values: Mapping[str, Any], name: str) -> float:
    value = _number(values, name)
    if value < 0:
        raise ConfigError(f"profile field {name}: must not be negative, got {value}")
    return value
