"""From a calibration's document to θ, and how well it predicts: pure, so a document can be fitted again."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from services.bench.calibrate_beside import besides_of
from services.bench.calibrate_served import served_of
from services.bench.shapes import SHAPES, measured_spec
from splash_core.cost.accuracy import Accuracy
from splash_core.cost.fit import Measured, fit
from splash_core.cost.interference import with_interference
from splash_core.cost.measured_on import layer_shape
from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import HardwareProfile, Provenance, analytical_profile
from splash_core.cost.samples import StepSample, operations_of, samples_of
from splash_core.cost.served import with_service
from splash_core.spec.hardware import named_gpu
from splash_core.units import DENSE_EXPERT_ROWS, MIB

RECORDED_BYTES = MIB
"""Received by a rank: larger collectives of recorded steps go the way of all others (`dist.oneshot`)."""

Document = Mapping[str, Any]


def concluded(document: Document) -> dict[str, Any]:
    """The document with the profile that fits it, and its accuracy.

    Raises:
        ConfigError: too little was measured.
    """
    rows, settings = document["rows"], document["settings"]
    steps = samples_of(rows, num_ranks=settings["ranks"])
    small = RECORDED_BYTES if any(row.get("comm") == "recorded" for row in rows) else 0
    operations = operations_of(rows, recorded_bytes=small)
    model = _model(settings)
    profile = fit(model, Measured(steps=steps, operations=operations), small_bytes=small)
    accuracy = Accuracy.of(replace(model, profile=profile), steps)
    provenance = _provenance(document, accuracy)
    named = replace(profile, name=_name(settings), ranks=settings["ranks"], provenance=provenance)
    named = with_interference(named, besides_of(rows))
    named = with_service(replace(model, profile=named), served_of(rows))
    return {
        **document,
        "profile": json.loads(named.to_json()),
        "accuracy": accuracy.to_json(),
    }


def profile_of(document: Document) -> HardwareProfile:
    """The profile in a concluded document."""
    return HardwareProfile.from_json(json.dumps(document["profile"]))


def steps_of(document: Document) -> tuple[StepSample, ...]:
    """The whole steps in a document."""
    return samples_of(document["rows"], num_ranks=document["settings"]["ranks"])


def model_of(document: Document) -> CostModel:
    """The cost model of a concluded document."""
    return replace(_model(document["settings"]), profile=profile_of(document))


def _model(settings: Mapping[str, Any]) -> CostModel:
    """With what is assumed before anything is measured."""
    gpu = named_gpu("cpu" if settings["device"] == "cpu" else "h200")
    # In bf16 a GPU's few rows go through all experts (`kernels.cuda_kernels`).
    dense = DENSE_EXPERT_ROWS if settings["device"] == "cuda" and settings["dtype"] == "bf16" else 0
    profile = replace(analytical_profile(gpu, dtype=settings["dtype"]), dense_expert_rows=dense)
    model = settings["checkpoint"]
    experts = settings["experts"] if model in SHAPES else 0
    return CostModel(
        spec=measured_spec(model, layers=settings["layers"], experts=experts),
        precision=named_precision(settings["dtype"]),
        profile=profile,
        num_ranks=settings["ranks"],
    )


def _name(settings: Mapping[str, Any]) -> str:
    return f"{settings['model']}-{settings['device']}-{settings['dtype']}-t{settings['ranks']}"


def _provenance(document: Document, accuracy: Accuracy) -> Provenance:
    settings = document["settings"]
    counts = {held: sum(g.steps for g in accuracy.groups if g.held_out is held) for held in (False, True)}
    return Provenance(
        source="measured",
        machine=document["machine"],
        date=document["date"],
        commit=document["commit"],
        model=f"{settings['model']}, {settings['layers']} layers",
        note=f"torch {settings['torch']}; {counts[False]} steps fitted, {counts[True]} held out",
        residuals=accuracy.residuals(),
        shape=layer_shape(_model(settings).spec),
    )
