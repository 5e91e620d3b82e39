"""The paper's winners as data, a batch through prefill, link and decode, and the report of both."""

import functools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.commands.compare_page import comparison_page
from services.commands.plan import app
from splash_core.cost.footprint import Deployment
from splash_core.cost.precision import named_precision
from splash_core.errors import ConfigError
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.policy.comparison import MARGIN, ComparedPoint, PaperComparison, compare_with_paper
from splash_core.policy.decode_line import DecodeLine
from splash_core.policy.end_to_end import PricedPair, batch_time
from splash_core.policy.paper import PAPER_SWEEPS, Lead, MeasuredPoint
from splash_core.policy.snapshot import LayoutPool
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import named_gpu
from tests.support.policy_cases import cost_model

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MODEL = cost_model(ranks=4)


def pair(tokens: int = 100_000, *, decode_tokens: int = 100_000) -> PricedPair:
    return PricedPair(
        prefill=MODEL,
        decode=MODEL,
        pools={layout: LayoutPool(feasible=True, total_tokens=tokens) for layout in STANDARD_LAYOUTS},
        decode_layout=Layout.DP,
        decode_tokens=decode_tokens,
        chunk_tokens=256,
        page_size=16,
        handoff_bps=1e9,
    )


@functools.cache
def compared(gpu: str) -> PaperComparison:
    sweeps, device = PAPER_SWEEPS[gpu], named_gpu(gpu)
    deployment = Deployment(
        precision=named_precision("fp8"),
        num_ranks=sweeps.ranks,
        memory_bytes=device.memory_bytes,
        fraction=sweeps.fraction,
        page_size=64,
        chunk_tokens=2048 * sweeps.ranks,
        runtime_bytes=device.runtime_bytes,
    )
    return compare_with_paper(named_spec(sweeps.model), device, deployment)


class TestPaper:
    def test_the_points_are_those_that_the_text_counts(self) -> None:
        b200, h200 = PAPER_SWEEPS["b200"].points, PAPER_SWEEPS["h200"].points
        assert (len(b200), len(h200)) == (32, 29)
        # "DOP leads at eight of the 32 sampled positions", "at seven of the 29".
        assert [sum(point.winner is Layout.DOP for point in points) for points in (b200, h200)] == [8, 7]
        assert all(point.winner is not None for point in b200)
        assert sum(point.winner is None for point in h200) == 10
        assert all(Layout.DOP not in point.winners for point in h200 if point.winner is None)
        assert Counter(point.sweep for point in h200).most_common() == [
            ("batch, 32K input", 8),
            ("input length, B=16", 7),
            ("input length, B=32", 7),
            ("batch, 64K input", 7),
        ]

    def test_values_and_leads_are_one_story(self) -> None:
        for point in PAPER_SWEEPS["b200"].points:
            if len(point.tokens_per_s) == 2:
                assert point.lead is not None
                lead = point.tokens_per_s[Layout.DOP] / point.tokens_per_s[Layout.CP] - 1
                assert lead == pytest.approx(point.lead.most, abs=0.001)


class TestDecodeLine:
    def test_all_that_run_advance_together(self) -> None:
        line = DecodeLine(model=MODEL, layout=Layout.DP, context=100, most=8)
        assert line.finish([1.0] * 4, tokens=10) == pytest.approx(1.0 + 10 * line.step_s(4))
        # One alone, then two, then the second alone.
        alone, both = line.step_s(1), line.step_s(2)
        late = 5 * alone
        assert line.finish([0.0, late], tokens=10) == pytest.approx(late + 5 * both + 5 * alone)

    def test_no_more_run_than_the_pool_holds(self) -> None:
        line = DecodeLine(model=MODEL, layout=Layout.DP, context=100, most=2)
        assert line.finish([0.0] * 5, tokens=10) == pytest.approx(20 * line.step_s(2) + 10 * line.step_s(1))


class TestBatchTime:
    def test_a_prompt_alone_is_its_chunks_and_its_tokens(self) -> None:
        time = batch_time(pair(), Layout.TP, batch=1, input_tokens=1024, output_tokens=101)
        assert time is not None
        assert time.waves == 1
        assert 0 < time.prefill_s < time.handed_over_s < time.total_s
        longer = batch_time(pair(), Layout.TP, batch=1, input_tokens=2048, output_tokens=101)
        assert longer is not None
        assert longer.prefill_s > 1.9 * time.prefill_s

    def test_owners_compute_side_by_side(self) -> None:
        one = batch_time(pair(), Layout.DP, batch=1, input_tokens=1024, output_tokens=2)
        four = batch_time(pair(), Layout.DP, batch=4, input_tokens=1024, output_tokens=2)
        assert one is not None
        assert four is not None
        assert four.prefill_s < 1.7 * one.prefill_s

    def test_a_pool_admits_in_waves_and_a_prompt_that_never_fits_has_no_time(self) -> None:
        time = batch_time(pair(2048), Layout.TP, batch=4, input_tokens=1024, output_tokens=2)
        assert time is not None
        assert time.waves > 1
        assert batch_time(pair(512), Layout.TP, batch=4, input_tokens=1024, output_tokens=2) is None
        striped = batch_time(pair(512), Layout.CP, batch=4, input_tokens=1024, output_tokens=2)
        assert striped is not None

    def test_a_full_decode_group_makes_requests_wait(self) -> None:
        free = batch_time(pair(), Layout.CP, batch=16, input_tokens=1024, output_tokens=1000)
        full = batch_time(
            pair(decode_tokens=2400), Layout.CP, batch=16, input_tokens=1024, output_tokens=1000
        )
        assert free is not None
        assert full is not None
        assert (full.prefill_s, full.total_s > free.total_s) == (free.prefill_s, True)


class TestReport:
    @pytest.mark.parametrize("gpu", PAPER_SWEEPS)
    def test_every_point_is_compared_in_all_layouts(self, gpu: str) -> None:
        comparison = compared(gpu)
        assert len(comparison.points) == len(comparison.sweeps.points)
        for point in comparison.points:
            assert set(point.tokens_per_s) == set(STANDARD_LAYOUTS)
            assert list(point.tokens_per_s.values()) == sorted(point.tokens_per_s.values(), reverse=True)

    @pytest.mark.parametrize("gpu", PAPER_SWEEPS)
    def test_the_committed_page_is_what_the_command_prints(self, gpu: str) -> None:
        comparison = compared(gpu)
        page = RESULTS / f"regimes-{comparison.sweeps.gpu}.md"
        printed = comparison_page(comparison)
        assert page.read_text() == printed, f"{page.name} is old: run the command on its third line into it"
        sweeps = comparison.sweeps
        args = ["--model", sweeps.model, "--gpu", sweeps.gpu, "--ranks", "8", "--dtype", "fp8"]
        result = CliRunner().invoke(app, [*args, "--fraction", str(sweeps.fraction), "--compare", "paper"])
        assert result.output == printed

    def test_json(self) -> None:
        comparison = compared("h200")
        report = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
        assert report["points"] == len(report["rows"])
        assert report["agreeing"] <= report["within_margin"] <= report["named"]

    def test_prefill_alone_never_puts_dop_first_not_even_over_infinite_links(self) -> None:
        # Whose exchange is free, and whose pool admits more: DP's step is the same without collectives.
        spec, gpu = named_spec("deepseek-v3.2"), named_gpu("h200")
        for scale in (1.0, 3.0, 1e6):
            fast = replace(gpu, link_bps=gpu.link_bps * scale)
            deployment = Deployment(
                precision=named_precision("fp8"),
                num_ranks=8,
                memory_bytes=gpu.memory_bytes,
                fraction=0.9,
                page_size=64,
                chunk_tokens=16384,
                runtime_bytes=gpu.runtime_bytes,
            )
            points = compare_with_paper(spec, fast, deployment).points
            behind = [point.behind for point in points if point.measured.winner is Layout.DOP]
            assert min(behind) > 0
            assert scale < 1e6 or max(behind) < 0.06

    def test_losses_are_the_papers_own(self) -> None:
        measured = MeasuredPoint(
            sweep="s",
            batch=1,
            input_tokens=1,
            winners=(Layout.DOP,),
            source="§",
            lead=Lead(runner_up=Layout.CP, least=0.25, most=0.6),
        )
        point = ComparedPoint(measured=measured, tokens_per_s={Layout.CP: 10.0, Layout.DOP: 9.9})
        assert point.loss == pytest.approx((0.2, 0.375))
        assert (point.agrees, point.within_margin) == (False, True)
        assert point.behind == pytest.approx(0.01)
        far = replace(point, tokens_per_s={Layout.CP: 10.0, Layout.DOP: 10 / (1 + MARGIN) - 0.1})
        assert not far.within_margin
        known = replace(measured, tokens_per_s={Layout.DOP: 20.0, Layout.CP: 15.0})
        assert replace(point, measured=known).loss == (0.25, 0.25)
        assert replace(point, tokens_per_s={Layout.TP: 10.0, Layout.DOP: 9.0}).loss is None
        assert replace(point, tokens_per_s={Layout.DOP: 10.0}).loss == (0.0, 0.0)

    def test_unknown_sweeps_name_those_there_are(self) -> None:
        device = named_gpu("h100")
        deployment = Deployment(
            precision=named_precision("fp8"),
            num_ranks=8,
            memory_bytes=device.memory_bytes,
            fraction=0.9,
            page_size=64,
            chunk_tokens=16384,
        )
        with pytest.raises(ConfigError, match=r"--model glm-5 --gpu b200 --ranks 8 --fraction 0\.85"):
            compare_with_paper(named_spec("deepseek-v3"), device, deployment)
