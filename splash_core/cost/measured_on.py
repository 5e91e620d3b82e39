"""Whether a measured profile tells of a model: its constants are of layers of one shape, in whatever number.

Invariant: only a measured profile is ever doubted, and a doubt names what differs; it refuses nothing, since
one of a near shape is better than none.
"""

from collections.abc import Mapping

from splash_core.cost.profile import HardwareProfile
from splash_core.spec.model import ModelSpec


def layer_shape(spec: ModelSpec) -> Mapping[str, int]:
    """What a layer of a model costs depends on; 0 for what it has not."""
    moe = spec.moe
    return {
        "hidden": spec.hidden,
        "heads": spec.heads,
        "q_lora_rank": spec.q_lora_rank or 0,
        "kv_lora_rank": spec.kv_lora_rank,
        "nope_dim": spec.nope_dim,
        "rope_dim": spec.rope_dim,
        "v_dim": spec.v_dim,
        "intermediate": spec.dense_intermediate,
        "experts": moe.num_experts if moe else 0,
        "experts_per_token": moe.top_k if moe else 0,
        "expert_intermediate": moe.intermediate if moe else 0,
        "index_heads": spec.indexer.num_heads if spec.indexer else 0,
    }


def doubt(profile: HardwareProfile, spec: ModelSpec) -> str:
    """Why a profile may not tell of a model, or an empty text."""
    seen = profile.provenance
    if seen.source != "measured":
        return ""
    if not seen.shape:
        name = seen.model.partition(",")[0]
        known = f"{name}, whose dimensions it does not state" if name else "a model that it does not name"
        return "" if name == spec.name else f"measured on {known}"
    served = layer_shape(spec)
    differing = [
        f"{name} {seen.shape.get(name, 0)} for {served.get(name, 0)}"
        for name in {**served, **seen.shape}
        if seen.shape.get(name, 0) != served.get(name, 0)
    ]
    return f"measured on {seen.model or 'another model'}: {', '.join(differing)}" if differing else ""


def warning(profile: HardwareProfile, spec: ModelSpec) -> str:
    """A doubt with its remedy, or an empty text."""
    why = doubt(profile, spec)
    if not why:
        return ""
    return (
        f"profile {profile.name} was {why}; its times may be far off for {spec.name}: give one that "
        f"`splash calibrate` measured on this model, or leave --profile out"
    )


def described(profile: HardwareProfile, spec: ModelSpec) -> str:
    """Whose figures predictions for a model stand on, in a few words."""
    return f"{profile.name} ({doubt(profile, spec) or profile.provenance.source})"
