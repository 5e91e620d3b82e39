"""The router's metrics page: what is declared is shown, what is not is an error, what has gone is gone."""

import pytest

from services.router.metrics import Metrics
from splash_core.errors import InvariantBroken

COUNTER, GAUGE = "splash_requests_total", "splash_policy_version"


def test_a_name_that_is_not_declared_is_an_error() -> None:
    metrics = Metrics()
    with pytest.raises(InvariantBroken, match="splash_oddities_total"):
        metrics.count("splash_oddities_total")
    with pytest.raises(InvariantBroken, match="splash_oddity"):
        metrics.show("splash_oddity", 1.0)
    with pytest.raises(InvariantBroken, match="splash_oddity"):
        metrics.render([("splash_oddity", (), 1.0)])


def test_series_end_one_by_one() -> None:
    metrics = Metrics()
    for code in ("200", "404"):
        metrics.count(COUNTER, code=code)
    metrics.show(GAUGE, 3.0)
    metrics.forget(COUNTER, code="404")
    metrics.hide(GAUGE)
    metrics.hide(GAUGE)
    lines = metrics.render([("splash_running_sequences", (), 2.0)]).splitlines()
    samples = [
        line
        for line in lines
        if not line.startswith("#") and not line.startswith(("splash_ttft", "splash_itl"))
    ]
    assert samples == ['splash_requests_total{code="200"} 1', "splash_running_sequences 2"]
    assert "splash_ttft_seconds_count 0" in lines
