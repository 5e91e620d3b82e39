"""Requests longer than a model has positions are refused before ranks start; defaults fit every model."""

from dataclasses import replace
from typing import Any

import pytest

from services.bench import switch
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.lengths import check_lengths, with_usual_lengths
from services.bench.settings import (
    INPROCESS,
    AgreementSettings,
    BenchSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.shapes import measured_spec
from services.bench.spmd import resolved, run_spmd
from splash_core.errors import Infeasible

TINY: dict[str, Any] = {"device": "cpu", "model": "tiny", "ranks": 2, "backend": INPROCESS}
SPEC = measured_spec("tiny")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            SwitchSettings(**TINY, context="4K,16K"),
            "--context 16384: bench-tiny has 8,192 positions, of which steps take 128; "
            "nearest feasible: --context 8064",
        ),
        (SwitchSettings(**TINY, context="8K", phase="decode"), "nearest feasible: --context 7664"),
        (SwitchSettings(**TINY, context="1", chunk="16K", batch="1"), "nearest feasible: a smaller --chunk"),
        (SweepSettings(**TINY, input="16K"), "--input 16384: bench-tiny has 8,192 .* --input 8170"),
        (SweepSettings(**TINY, input="16K", phase="prefill"), "nearest feasible: --input 8192"),
        (PrimitivesSettings(**TINY, context="16K"), "nearest feasible: --context 8192"),
        (AgreementSettings(**TINY, prompt=8192), "nearest feasible: --prompt 8129"),
        (AgreementSettings(**TINY, positions=1 << 20), "nearest feasible: fewer --positions"),
        (CalibrateSettings(**TINY, context="8K"), "nearest feasible: --context 7680"),
    ],
)
def test_what_the_model_has_no_positions_for_is_refused(asked: BenchSettings, words: str) -> None:
    with pytest.raises(Infeasible, match=words):
        resolved(asked)


def test_the_nearest_is_feasible() -> None:
    check_lengths(SwitchSettings(**TINY, context="8064"), SPEC)
    check_lengths(SweepSettings(**TINY, input="8170"), SPEC)
    check_lengths(CalibrateSettings(**TINY, context="8K", most_tokens=4096), SPEC)


def test_one_step_of_all_rows_is_run_on_gpus_alone() -> None:
    asked = CapacitySettings(**TINY)
    check_lengths(asked, SPEC)
    with pytest.raises(Infeasible, match="nearest feasible: --chunk-tokens 8192"):
        check_lengths(replace(asked, device="cuda"), SPEC)


@pytest.mark.parametrize("kind", [PrimitivesSettings, SwitchSettings, SweepSettings, AgreementSettings])
@pytest.mark.parametrize("model", ["tiny", "v3"])
def test_defaults_fit(kind: type[BenchSettings], model: str) -> None:
    spec = measured_spec(model)
    check_lengths(with_usual_lengths(kind(model=model), spec), spec)


def test_usual_lengths_are_those_that_the_model_holds() -> None:
    v3 = measured_spec("v3")
    for asked, short, long in (
        (PrimitivesSettings(), "1K", "16K,64K,128K"),
        (SwitchSettings(), "1K", "16K"),
        (replace(SwitchSettings(), context="64K"), "64K", "64K"),
    ):
        for spec, length in ((SPEC, short), (v3, long)):
            decided = with_usual_lengths(asked, spec)
            assert isinstance(decided, PrimitivesSettings | SwitchSettings)
            assert decided.context == length
    sweep = with_usual_lengths(SweepSettings(), SPEC)
    assert isinstance(sweep, SweepSettings)
    assert sweep.input == "1K,4K"


def test_steps_reach_the_last_position() -> None:
    fields = TINY | {"batch": "1", "chunk": "4", "modes": "blocking", "directions": "TP:DP", "page_size": 64}
    (row,) = run_spmd(switch.run, resolved(SwitchSettings(**fields, context="8188", reps=1)))["rows"]
    assert row["context"] == 8188
    assert "reason" not in row
