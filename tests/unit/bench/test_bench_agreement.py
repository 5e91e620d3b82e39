"""Layouts beside each other and beside themselves: figures by hand, and a whole run at tiny size."""

import math
from typing import Any

import pytest
import torch

from services.bench import agreement
from services.bench.agreement_figures import likeness, spread
from services.bench.results_page import section
from services.bench.settings import INPROCESS, AgreementSettings
from services.bench.spmd import resolved, run_spmd
from splash_core.errors import ConfigError

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"device": "cpu", "model": "tiny", "ranks": 2, "backend": INPROCESS}


def test_figures_of_two_distributions_by_hand() -> None:
    a_NV = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])
    b_NV = torch.tensor([[math.log(3.0), 0.0], [0.5, 0.0]])
    found = likeness(a_NV, b_NV, head_scale=1.0, device=CPU)
    assert found.agreement == 0.5
    assert found.agreement_error == pytest.approx(math.sqrt(0.25 / 2))
    q = torch.tensor([0.5, 0.0]).softmax(-1)
    second = 0.25 * math.log(0.25 / q[0]) + 0.75 * math.log(0.75 / q[1])
    assert found.divergence_N.tolist() == pytest.approx([0.0, second], abs=1e-6)
    assert found.divergence == pytest.approx(second / 2, abs=1e-6)
    assert found.widest_margin_crossed == pytest.approx(math.log(3.0))
    assert likeness(a_NV, a_NV, head_scale=1.0, device=CPU).widest_margin_crossed == 0.0


def test_a_distribution_is_described_as_scaled() -> None:
    flat_NV = torch.zeros(3, 8)
    seen = spread(flat_NV, head_scale=4.0, device=CPU)
    assert (seen.ties, seen.deviation, seen.margin(0.9)) == (1.0, 0.0, 0.0)
    assert seen.entropy == pytest.approx(math.log(8))
    peaked_NV = flat_NV.clone()
    peaked_NV[:, 5] = 0.5
    seen = spread(peaked_NV, head_scale=4.0, device=CPU)
    assert (seen.ties, seen.margin(0.5)) == (0.0, 2.0)
    assert seen.entropy < math.log(8)


def test_figures_of_many_rows_are_those_of_all_parts_together() -> None:
    a_NV = torch.randn(150, 20, generator=torch.Generator().manual_seed(1))
    b_NV = a_NV + 0.1 * torch.randn(150, 20, generator=torch.Generator().manual_seed(2))
    found = likeness(a_NV, b_NV, head_scale=2.0, device=CPU)
    log_p, log_q = (2 * a_NV).log_softmax(-1), (2 * b_NV).log_softmax(-1)
    assert found.divergence == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), rel=1e-4)
    assert found.agreement == float((a_NV.argmax(-1) == b_NV.argmax(-1)).double().mean())


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_layouts_agree_on_one_model_in_wide_types(graphs: str) -> None:
    """What differs in half types is rounding alone: in fp64 all layouts name the same tokens."""
    asked = AgreementSettings(
        **TINY, dtype="fp64", graphs=graphs, batch=4, yardstick_batch=2, positions=10, prompt=9
    )
    document = run_spmd(agreement.run, resolved(asked))
    rows = document["rows"]
    pairs = [row for row in rows if row["what"] == "layout"]
    assert {(row["a"], row["b"]) for row in pairs} == {
        ("TP", "CP"), ("TP", "DP"), ("TP", "DOP"), ("CP", "DP"), ("CP", "DOP"), ("DP", "DOP"),
    }  # fmt: skip
    itself = [row for row in rows if row["what"] == "batch"]
    assert [(row["a"], row["a_batch"], row["b_batch"]) for row in itself] == [
        (layout, 4, 2) for layout in ("TP", "CP", "DP", "DOP")
    ]
    for row in pairs + itself:
        # 4 sequences of 3 steps each: positions are rounded up.
        assert (row["positions"], row["agreement"], row["agreement_error"]) == (12, 1.0, 0.0)
        assert row["kl_mean"] == pytest.approx(0.0, abs=1e-6)
    assert all(row["met"] and row["yardstick_agreement"] == 1.0 for row in pairs)
    distributions = [row for row in rows if row["what"] == "distribution"]
    assert len({(row["a"], row["a_batch"]) for row in distributions}) == 8
    # The random head spreads logits by about 1, of which the setting makes 4.
    assert all(3.0 < row["logit_deviation"] < 5.0 for row in distributions)
    text = section(document)
    assert "| TP, CP | 4 | 12 | 100.00% ± 0.00 | 100.00% | +0.00, met |" in text


def test_the_yardstick_runs_parts_of_the_batch() -> None:
    with pytest.raises(ConfigError, match="multiple of --yardstick-batch"):
        run_spmd(agreement.run, resolved(AgreementSettings(**TINY, batch=6, yardstick_batch=4)))
    with pytest.raises(ConfigError, match="not the same"):
        run_spmd(agreement.run, resolved(AgreementSettings(**TINY, batch=4, yardstick_batch=4)))
