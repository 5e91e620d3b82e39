"""Rotary embedding parameters of a model, from either spelling that config.json files use."""

from dataclasses import dataclass
from enum import StrEnum

from splash_core.errors import ConfigError
from splash_core.spec.fields import Fields


class RopeKind(StrEnum):
    """How rotary frequencies are scaled."""

    DEFAULT = "default"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding parameters (transformers `rope_parameters`)."""

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    truncate: bool = True
    """Yarn: round the correction range to whole dimensions."""
    interleaved: bool = True
    """True: pairs are (x0, x1), (x2, x3) …; False: (x0, x[p/2]) …"""

    @classmethod
    def from_hf(cls, config: Fields) -> "RopeSpec":
        """Read `rope_parameters` (transformers 5) or `rope_scaling` with a top-level `rope_theta` (older)."""
        section = config.section("rope_parameters", "rope_scaling") or Fields({}, config.where)
        name = section.text("rope_type", "type", default="default")
        if name not in tuple(RopeKind):
            known = ", ".join(RopeKind)
            raise ConfigError(f"{section.where}: rope_type {name!r} is not supported (supported: {known})")
        kind = RopeKind(name)
        positions = config.integer("max_position_embeddings", "model_max_length", default=2048)
        original = config.integer(
            "original_max_position_embeddings",
            default=section.integer("original_max_position_embeddings", default=positions),
        )
        return cls(
            kind=kind,
            theta=section.number("rope_theta", default=config.number("rope_theta", default=10000.0)),
            factor=section.number(
                "factor", default=1.0 if kind is RopeKind.DEFAULT else positions / original
            ),
            original_max_positions=original,
            beta_fast=section.number("beta_fast", default=32.0) or 32.0,
            beta_slow=section.number("beta_slow", default=1.0) or 1.0,
            mscale=section.optional_number("mscale"),
            mscale_all_dim=section.optional_number("mscale_all_dim"),
            attention_factor=section.optional_number("attention_factor"),
            short_factor=section.numbers("short_factor"),
            long_factor=section.numbers("long_factor"),
            truncate=section.flag("truncate", default=True),
            interleaved=config.flag("rope_interleave", default=True),
        )
