"""The fit of θ: known constants come back, warm-up and outliers do not enter, choices are those of truth."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from splash_core.cost.accuracy import Accuracy, choices
from splash_core.cost.constants import APART, names_of, value_of, with_values
from splash_core.cost.fit import Measured, fit, operation_s, predicted_s
from splash_core.cost.links import Collective, CollectiveLoad, LinkRate
from splash_core.cost.load import Load, OwnerLoad, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.samples import (
    Attend,
    Operation,
    Product,
    Sent,
    StepSample,
    rows_text,
    samples_of,
    text_rows,
)
from splash_core.cost.step_kind import StepKind
from splash_core.errors import ConfigError
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS
from tests.support.policy_cases import cost_model

NOISE = 0.03
REPS, WARMUP = 5, 3


def truth() -> CostModel:
    """A machine whose constants are known."""
    model = cost_model()
    rates = {kind.value: (LinkRate(latency_s=6e-5, bps=3e9),) for kind in Collective}
    profile = replace(
        model.profile,
        flops=6e10,
        expert_flops=6e10,
        attention_flops=3e10,
        expanded_flops=2e10,
        weight_read_bps=1.5e10,
        kv_read_bps=5e9,
        collectives=rates,
        overlap=0.6,
        layer_overhead_s=4e-4,
        step_overhead_s=2e-3,
        eager_layer_s=2e-4,
        meet_s=2e-5,
        run_s=1e-4,
        head_s=1e-7,
        row_s=2e-6,
        draw_s=2e-4,
    )
    return replace(model, profile=profile)


def loads() -> Iterator[tuple[str, bool, tuple[Rows, ...]]]:
    for batch in (1, 2, 4, 16, 48):
        for context in (64, 512, 2048):
            for skew in (1, 3):
                rows = tuple(
                    Rows(1, context - index % 5, index % (skew + 1) // skew) for index in range(batch)
                )
                yield f"decode {batch} × {context}, {skew}", True, rows
    for batch in (1, 2, 5):
        for history in (0, 256, 1024):
            for rows in (24, 96, 384):
                items = tuple(
                    Rows(rows // batch, history, index, samples=index % 2) for index in range(batch)
                )
                yield f"prefill {batch} × {history}, {rows}", False, items


def measured(model: CostModel, *, seed: int = 0, noise: float = NOISE) -> Measured:
    """What that machine shows, with noise; every third batch held out."""
    draw = random.Random(seed)
    steps: list[StepSample] = []
    for number, (name, decode, rows) in enumerate(loads()):
        load, kind = Load.of(rows, num_ranks=2), StepKind.REPLAYED if decode else StepKind.PROMPTS
        for layout in STANDARD_LAYOUTS:
            seen = model.predict(RULES[layout], load, kind=kind)
            times = tuple(seen.step_s * math.exp(draw.gauss(0.0, noise)) for _ in range(WARMUP + REPS))
            steps.append(
                StepSample(
                    batch=name,
                    phase="decode" if decode else "prefill",
                    layout=layout,
                    load=load,
                    kind=kind,
                    form=seen.form,
                    storage=seen.storage,
                    times_s=times,
                    warmup=WARMUP,
                    held_out=number % 3 == 2,
                )
            )
    return Measured(steps=steps, operations=[with_time(model, one) for one in operations()])


def operations() -> Iterator[Operation]:
    for rows in (1, 8, 64, 512):
        yield Product(flops=2.0 * rows * 600_000, read_bytes=2.4e6, seconds=1.0)
    for kind in Collective:
        for size in (1 << 10, 1 << 16, 1 << 22):
            yield Sent(message=CollectiveLoad(kind, 1, size), seconds=1.0)
    for form in AttentionForm:
        for rows, context in ((32, 0), (128, 512), (256, 2048)):
            yield Attend(work=OwnerLoad.of(Rows(rows, context), top_k=None), form=form, seconds=1.0)


def with_time(model: CostModel, one: Operation) -> Operation:
    return replace(one, seconds=operation_s(model, one))


def poisoned(steps: Sequence[StepSample], count: int) -> list[StepSample]:
    """The warm-up of `count` steps a thousand times as long."""
    worse = list(steps)
    for place in range(0, len(steps), len(steps) // count)[:count]:
        times = steps[place].times_s
        bad = tuple(time * 1e3 for time in times[:WARMUP])
        worse[place] = replace(steps[place], times_s=bad + times[WARMUP:])
    return worse


TRUTH = truth()
SEEN = measured(TRUTH)
FITTED = replace(TRUTH, profile=fit(cost_model(), SEEN))


class TestFit:
    def test_known_constants_come_back(self) -> None:
        exact = fit(cost_model(), measured(TRUTH, noise=0.0))
        for name in ("flops", "attention_flops", "expanded_flops", "weight_read_bps"):
            assert value_of(exact, name) == pytest.approx(value_of(TRUTH.profile, name), rel=0.2), name
        for kind in Collective:
            assert exact.rates(kind)[0].bps == pytest.approx(3e9, rel=0.2)
            assert exact.rates(kind)[0].latency_s == pytest.approx(6e-5, rel=0.2)

    def test_noise_moves_predictions_less_than_itself(self) -> None:
        accuracy = Accuracy.of(FITTED, SEEN.steps)
        assert accuracy.holds
        assert max(group.error for group in accuracy.groups if group.held_out) < NOISE
        assert set(accuracy.residuals()) == {
            f"{phase}/{layout}" for phase in ("prefill", "decode") for layout in STANDARD_LAYOUTS
        }

    def test_held_out_steps_do_not_enter(self) -> None:
        worse = [replace(step, times_s=(1.0,) * 8) if step.held_out else step for step in SEEN.steps]
        assert fit(cost_model(), replace(SEEN, steps=worse)) == FITTED.profile

    def test_ten_poisoned_warm_up_samples_change_no_choice(self) -> None:
        worse = replace(SEEN, steps=poisoned(SEEN.steps, 10))
        assert worse.steps != SEEN.steps
        profile = fit(cost_model(), worse)
        assert profile == FITTED.profile
        assert choices(replace(TRUTH, profile=profile), worse.steps) == choices(FITTED, SEEN.steps)

    def test_one_outlier_in_five_repetitions_decides_nothing(self) -> None:
        worse = [replace(step, times_s=(*step.times_s[:-1], step.times_s[-1] * 50)) for step in SEEN.steps]
        profile = fit(cost_model(), replace(SEEN, steps=worse))
        again = replace(TRUTH, profile=profile)
        for step in SEEN.steps:
            assert predicted_s(again, step) == pytest.approx(predicted_s(FITTED, step), rel=2 * NOISE)

    def test_steps_that_went_wrong_altogether_are_outvoted(self) -> None:
        wrong = {id(step) for step in SEEN.steps[::20]}
        worse = [
            replace(step, times_s=tuple(time * 10 for time in step.times_s)) if id(step) in wrong else step
            for step in SEEN.steps
        ]
        accuracy = Accuracy.of(
            replace(TRUTH, profile=fit(cost_model(), replace(SEEN, steps=worse))), SEEN.steps
        )
        assert accuracy.holds

    def test_it_is_deterministic_and_positive(self) -> None:
        again = fit(cost_model(), SEEN)
        assert again == FITTED.profile
        assert all(value_of(again, name) >= 0 for name in names_of(again))

    def test_nothing_to_fit_says_what_to_raise(self) -> None:
        with pytest.raises(ConfigError, match="--budget-s"):
            fit(cost_model(), replace(SEEN, steps=[]))

    def test_small_collectives_may_have_rates_of_their_own(self) -> None:
        fast, slow = LinkRate(latency_s=1e-5, bps=1e10, most_bytes=1 << 17), LinkRate(latency_s=1e-4, bps=3e9)
        rates = {kind.value: (fast, slow) for kind in Collective}
        model = replace(TRUTH, profile=replace(TRUTH.profile, collectives=rates))
        profile = fit(cost_model(), measured(model), small_bytes=1 << 17)
        assert [rate.most_bytes for rate in profile.rates(Collective.SCATTER)] == [1 << 17, 0]
        assert Accuracy.of(replace(model, profile=profile), measured(model).steps).holds


class TestSamples:
    row = {  # noqa: RUF012
        "batch": "prefill even 1 × 8, 4 rows",
        "phase": "prefill",
        "layout": "CP",
        "requests": "8:4:1:0",
        "ms": [99.0, 1.0, 3.0, 2.0],
        "warmup": 1,
        "form": "expanded",
        "storage": "pass_kv",
        "held_out": True,
    }

    def test_requests_fit_on_a_line(self) -> None:
        items = (Rows(1, 64), Rows(16, 0, 3, samples=0))
        assert rows_text(items) == "64:1:0:1 0:16:3:0"
        assert text_rows(rows_text(items)) == items

    def test_warm_up_is_left_out(self) -> None:
        (sample,) = samples_of(
            [self.row, {"micro": "product"}, {"phase": "decode", "reason": "no"}], num_ranks=2
        )
        assert sample.counted == (0.001, 0.003, 0.002)
        assert sample.seconds == 0.002
        assert sample.spread == pytest.approx(0.5)
        assert (sample.form, sample.storage) == (AttentionForm.EXPANDED, CpStorage.PASS_KV)
        assert sample.load.owners[1].samples == 0

    def test_warm_up_alone_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="raise --reps"):
            samples_of([self.row | {"ms": [1.0]}], num_ranks=2)


def test_constants_can_be_changed_one_by_one() -> None:
    profile = TRUTH.profile
    for name in names_of(profile):
        changed = with_values(profile, {name: value_of(profile, name) / 2})
        assert value_of(changed, name) == pytest.approx(value_of(profile, name) / 2)
        assert with_values(changed, {name: value_of(profile, name)}) == profile
    assert with_values(profile, {APART: 3.0}).overlap == 0.0
