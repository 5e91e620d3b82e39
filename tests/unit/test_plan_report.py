"""`splash plan`: the numbers that the paper gives, the switch table from the planner, and the exit codes."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services import cli
from services.commands.plan import app, load_spec
from splash_core.cost.footprint import Deployment, ModelBytes, memory_account
from splash_core.cost.precision import named_precision
from splash_core.errors import ConfigError, Infeasible
from splash_core.layout.catalog import FeasibleLayout, catalog_of_memory
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout, Matrix
from splash_core.policy.plan import PlanReport, build_plan
from splash_core.policy.regimes import BATCHES, CONTEXTS, Group, regime_map
from splash_core.policy.snapshot import Phase
from splash_core.policy.switch_table import switch_table
from splash_core.spec.catalogue import CATALOGUE, named_spec
from splash_core.spec.hardware import named_gpu
from splash_core.switch.manifest import Primitive
from tests.support.policy_cases import cost_model, pools

GATHER, EXCHANGE = Primitive.ALL_GATHER, Primitive.ALL_TO_ALL


def deployment(gpu: str, *, ranks: int, fraction: float, dtype: str) -> Deployment:
    device = named_gpu(gpu)
    return Deployment(
        precision=named_precision(dtype),
        num_ranks=ranks,
        memory_bytes=device.memory_bytes,
        fraction=fraction,
        page_size=64,
        chunk_tokens=2048 * ranks,
        runtime_bytes=device.runtime_bytes,
    )


def plan(model: str, *, gpu: str, ranks: int, fraction: float, dtype: str = "fp8") -> PlanReport:
    paper = deployment(gpu, ranks=ranks, fraction=fraction, dtype=dtype)
    return build_plan(named_spec(model), named_gpu(gpu), paper)


@pytest.fixture(scope="module")
def glm() -> PlanReport:
    """The paper's B200 deployment."""
    return plan("glm-5", gpu="b200", ranks=8, fraction=0.85)


@pytest.fixture(scope="module")
def v32() -> PlanReport:
    """The paper's H200 deployment."""
    return plan("deepseek-v3.2", gpu="h200", ranks=8, fraction=0.90)


class TestSwitchTable:
    """docs/model.md §2: 4 weight gathers, 7 KV collectives, 2 switches that move nothing."""

    def test_four_seven_two(self) -> None:
        table = switch_table(8)
        assert len(table) == 12
        assert sum(kind.weights is GATHER for kind in table) == 4
        assert sum(kind.kv in (GATHER, EXCHANGE) for kind in table) == 7
        still = [
            (kind.layout_from, kind.layout_to)
            for kind in table
            if kind.weights is not GATHER and kind.kv not in (GATHER, EXCHANGE)
        ]
        assert still == [(Layout.TP, Layout.DOP), (Layout.DP, Layout.DOP)]

    def test_kinds_of_the_table(self) -> None:
        kinds = {(kind.layout_from, kind.layout_to): (kind.weights, kind.kv) for kind in switch_table(4)}
        assert kinds[Layout.DP, Layout.DOP] == (Primitive.DISCARD, Primitive.KEEP)
        assert kinds[Layout.TP, Layout.DOP] == (Primitive.KEEP, Primitive.DISCARD)
        assert kinds[Layout.DOP, Layout.CP] == (GATHER, EXCHANGE)
        assert kinds[Layout.CP, Layout.TP] == (Primitive.DISCARD, GATHER)

    @pytest.mark.parametrize("ranks", [2, 3, 8, 64])
    def test_the_table_does_not_depend_on_t(self, ranks: int) -> None:
        assert switch_table(ranks) == switch_table(4)

    def test_one_rank_moves_nothing(self) -> None:
        assert {(kind.weights, kind.kv) for kind in switch_table(1)} == {(Primitive.KEEP, Primitive.KEEP)}

    def test_bytes_agree_with_kinds(self, glm: PlanReport) -> None:
        for switch in glm.switches:
            assert (switch.moved.weights > 0) is (switch.kind.weights is GATHER)
            assert (switch.moved.kv > 0) is (switch.kind.kv in (GATHER, EXCHANGE))


class TestPaperFigures:
    def test_projections_in_flight(self, glm: PlanReport) -> None:
        mib = 2**20
        assert glm.gathered_bytes_per_layer / mib == pytest.approx(148.75, abs=0.05)
        assert 78 * glm.gathered_bytes_per_layer / 2**30 == pytest.approx(11.33, abs=0.01)
        # The paper counts 145.73 MiB a layer; ours is 2.1 % more, for two copies of KV-B.
        assert glm.gathered_bytes_per_layer / mib == pytest.approx(145.73, rel=0.025)

    def test_freed_memory_is_the_pool_difference_of_the_paper(self, glm: PlanReport) -> None:
        # 12.69 GiB is (8,271,360 - 6,497,792) / 8 tokens of 61,464 bytes.
        assert glm.account.token_bytes == 78 * 788
        assert (8_271_360 - 6_497_792) // 8 * glm.account.token_bytes / 2**30 == pytest.approx(
            12.69, abs=0.01
        )

    def test_glm_pools_on_b200(self, glm: PlanReport) -> None:
        paper = {Layout.TP: 1_045_312, Layout.CP: 6_738_944, Layout.DP: 6_497_792, Layout.DOP: 8_271_360}
        for layout, tokens in paper.items():
            assert glm.account.distinct_tokens(layout) == pytest.approx(tokens, rel=0.06)

    def test_v32_pools_on_h200(self, v32: PlanReport) -> None:
        # Appendix B.1, per rank; these are projections of the paper, not measurements.
        paper = {Layout.TP: 1_000_832, Layout.DP: 686_144, Layout.CP: 724_736, Layout.DOP: 948_352}
        pool = {layout: v32.account.pool_pages(layout) * 64 for layout in STANDARD_LAYOUTS}
        for layout, tokens in paper.items():
            assert pool[layout] == pytest.approx(tokens, rel=0.16)
        assert pool[Layout.DOP] / pool[Layout.DP] == pytest.approx(948_352 / 686_144, rel=0.03)

    def test_model_bytes_of_v3(self) -> None:
        spec = named_spec("deepseek-v3")
        model = ModelBytes.of(spec, named_precision("bf16"), num_ranks=1)
        projections = 61 * named_precision("bf16").projection_bytes(spec)
        # 671 billion parameters.
        assert (model.total + projections) / 2 == pytest.approx(671e9, rel=0.003)

    def test_dop_gains_what_it_does_not_replicate(self, v32: PlanReport) -> None:
        account = v32.account
        gain = account.pool_pages(Layout.DOP) - account.pool_pages(Layout.DP)
        assert gain == v32.borrowed_slots
        missing = v32.spec.num_mla_layers * v32.gathered_bytes_per_layer
        assert missing - gain * account.page_bytes < 0.03 * missing


class TestRegimes:
    """The order of the paper's regimes where the model gives it (docs/policy.md lists where it does not)."""

    def best(self, report: PlanReport, phase: Phase) -> dict[tuple[int, int], Layout | None]:
        return {(cell.batch, cell.context): cell.best for cell in report.regimes[phase]}

    def test_every_cell_is_there(self, v32: PlanReport) -> None:
        for phase in Phase:
            assert set(self.best(v32, phase)) == {(batch, size) for batch in BATCHES for size in CONTEXTS}

    def test_prefill(self, v32: PlanReport) -> None:
        best = self.best(v32, Phase.PREFILL)
        assert best[1, 256] is Layout.TP
        assert best[16, 1024] is Layout.DP
        assert best[16, 131072] is Layout.CP
        assert best[1, 524288] is Layout.CP

    @pytest.mark.parametrize(("name", "longest"), [("v32", 131072), ("glm", 524288)])
    def test_the_papers_order_shows_across_the_phases(
        self, name: str, longest: int, request: pytest.FixtureRequest
    ) -> None:
        report: PlanReport = request.getfixturevalue(name)
        prefill, decode = self.best(report, Phase.PREFILL), self.best(report, Phase.DECODE)
        assert prefill[1, 256] is Layout.TP
        assert prefill[32, 1024] is Layout.DP
        assert prefill[16, 131072] is Layout.CP
        assert decode[256, longest] is Layout.DOP

    def test_decode_prefers_dop_where_capacity_admits_more(self, v32: PlanReport) -> None:
        best = self.best(v32, Phase.DECODE)
        assert best[16, 4096] is Layout.DP
        assert best[128, 131072] is Layout.DOP
        assert best[256, 65536] is Layout.DOP

    def test_nothing_is_best_where_nothing_fits(self) -> None:
        group = Group(num_ranks=2, page_size=16, chunk_tokens=256, pools=pools(tokens=1024))
        cells = regime_map(cost_model(), group, Phase.PREFILL, batches=(1,), contexts=(1024, 2048, 4096))
        # Stripes hold twice what one rank does.
        assert [set(cell.tokens_per_s) for cell in cells] == [set(STANDARD_LAYOUTS), {Layout.CP}, set()]
        assert [cell.best for cell in cells][1:] == [Layout.CP, None]


class TestReport:
    def test_json_shape(self, v32: PlanReport) -> None:
        value = json.loads(json.dumps(v32.to_json(), allow_nan=False))
        assert {"model", "gpu", "ranks", "layouts", "projection_bytes_per_layer", "switches"} <= set(value)
        assert set(value["layouts"]) == {"TP", "CP", "DP", "DOP"}
        assert len(value["switches"]) == 12
        for entry in value["layouts"].values():
            assert {"weights_bytes", "pool_tokens_per_rank", "distinct_tokens", "longest_context"} <= set(
                entry
            )
        assert all({"from", "to", "weights", "kv", "bytes_per_rank"} <= set(row) for row in value["switches"])
        assert value["layouts"]["CP"]["longest_context"] == 8 * value["layouts"]["CP"]["pool_tokens_per_rank"]

    @pytest.mark.parametrize("name", sorted(CATALOGUE))
    def test_every_known_model_can_be_planned(self, name: str) -> None:
        account = memory_account(named_spec(name), deployment("b200", ranks=16, fraction=0.85, dtype="fp8"))
        verdicts = catalog_of_memory(account, at=lambda _: account)
        for layout in (Layout.CP, Layout.DP):
            assert isinstance(verdicts[layout], FeasibleLayout)

    def test_layouts_can_be_chosen_and_the_variant_too(self, v32: PlanReport) -> None:
        paper = deployment("h200", ranks=8, fraction=0.9, dtype="fp8")
        chosen = (Layout.DP, Layout.DOP, Layout.DOP_P)
        report = build_plan(named_spec("deepseek-v3.2"), named_gpu("h200"), paper, chosen)
        value = report.to_json()
        assert tuple(value["layouts"]) == chosen
        assert value["layouts"]["DOP"] == v32.to_json()["layouts"]["DOP"]
        dp, dop, variant = (value["layouts"][name]["distinct_tokens"] for name in ("DP", "DOP", "DOP-P"))
        assert dp < variant < dop
        gathered = {(row["from"], row["to"]): row["weight_bytes_per_layer"] for row in value["switches"]}
        assert len(gathered) == 6
        kv_b = report.account.projection_bytes[Matrix.KV_B] * 7 // 8
        assert gathered["DOP", "DOP-P"] == kv_b
        assert gathered["DOP-P", "DP"] == gathered["DOP", "DP"] - kv_b
        assert gathered["DP", "DOP-P"] == gathered["DOP-P", "DOP"] == 0
        cells = [cell for cells in report.regimes.values() for cell in cells]
        assert {cell.best for cell in cells} <= {*chosen, None}

    def test_odd_ranks_leave_dp_and_cp(self) -> None:
        value = plan("glm-4.7-flash", gpu="h200", ranks=8, fraction=0.85, dtype="bf16").to_json()
        assert [name for name, entry in value["layouts"].items() if entry["feasible"]] == ["CP", "DP"]
        assert "20 heads do not split over 8 ranks" in value["layouts"]["TP"]["reason"]
        assert value["borrowed_slots"] == 0

    def test_what_cannot_run_has_no_switches(self) -> None:
        value = plan("deepseek-v3", gpu="h200", ranks=7, fraction=0.85).to_json()
        assert [(switch["from"], switch["to"]) for switch in value["switches"]] == [
            ("CP", "DP"),
            ("DP", "CP"),
        ]
        assert "128 heads do not split over 7 ranks; use 8 ranks, or" in value["layouts"]["TP"]["reason"]

    def test_heads_that_do_not_split_are_the_reason_where_memory_suffices(self) -> None:
        seven = deployment("h200", ranks=7, fraction=0.85, dtype="fp8")
        spec, gpu = named_spec("deepseek-v3"), named_gpu("h200")
        with pytest.raises(Infeasible) as raised:
            build_plan(spec, gpu, seven, [Layout.TP])
        assert str(raised.value) == (
            "128 heads of deepseek-v3 do not split over 7 ranks (TP); nearest feasible: --ranks 8 (TP)"
        )
        wide = replace(seven, precision=named_precision("bf16"))
        with pytest.raises(Infeasible, match=r"over 7 ranks \(TP\); .* needs at least .* \(DP\), and 85%"):
            build_plan(spec, gpu, wide, [Layout.TP, Layout.DP])

    def test_fewer_ranks_are_named_where_they_do(self) -> None:
        small = deployment("h200", ranks=7, fraction=0.85, dtype="bf16")
        with pytest.raises(Infeasible, match=r"feasible: --ranks 4 \(TP\) or --ranks 8 \(TP\)"):
            build_plan(named_spec("deepseek-v2-lite"), named_gpu("h200"), small, [Layout.TP])

    def test_infeasible_names_what_would_do(self) -> None:
        with pytest.raises(Infeasible, match=r"nearest feasible: --dtype fp8 or --ranks 15 \(CP, DP\)"):
            plan("deepseek-v3", gpu="h200", ranks=8, fraction=0.85, dtype="bf16")


class TestCommand:
    def test_json_is_one_line(self) -> None:
        result = CliRunner().invoke(app, ["--model", "deepseek-v2-lite", "--ranks", "4", "--json"])
        assert result.exit_code == 0
        assert result.stdout.count("\n") == 1
        value = json.loads(result.stdout)
        assert (value["model"], value["gpu"], value["ranks"]) == ("deepseek-v2-lite", "h200", 4)
        assert value["fraction"] == 0.85
        assert value["recorded_rows"] == 256

    @pytest.mark.parametrize(("graphs", "rows"), [("auto", 128), ("on", 128), ("off", 0)])
    def test_a_plan_says_what_is_recorded(self, graphs: str, rows: int) -> None:
        args = ["--model", "deepseek-v2-lite", "--ranks", "8", "--layouts", "TP", "--json"]
        result = CliRunner().invoke(app, [*args, "--graphs", graphs])
        assert json.loads(result.stdout)["recorded_rows"] == rows

    def test_tables(self) -> None:
        result = CliRunner().invoke(
            app, ["--model", "glm-5", "--gpu", "b200", "--ranks", "8", "--dtype", "fp8"]
        )
        assert result.exit_code == 0
        for text in ("148.78 MiB", "all-to-all", "Best layout predicted in decode"):
            assert text in result.stdout

    def test_from_a_directory_or_its_config(self, tmp_path: Path) -> None:
        config = {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "vocab_size": 128,
            "intermediate_size": 128,
            "n_routed_experts": None,
        }
        directory = tmp_path / "small"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        assert load_spec(str(directory)) == load_spec(str(directory / "config.json"))
        result = CliRunner().invoke(
            app, ["--model", str(directory), "--gpu", "cpu", "--ranks", "2", "--page-size", "4", "--json"]
        )
        value = json.loads(result.stdout)
        assert (value["model"], value["dtype"]) == ("small", "fp32")
        assert value["borrowed_slots"] > 0
        assert value["recorded_rows"] == 0

    @pytest.mark.parametrize(
        ("args", "code", "message"),
        [
            (["--model", "deepseek-v3", "--ranks", "2"], 3, "nearest feasible"),
            (["--model", "gpt-2", "--ranks", "2"], 2, "deepseek-v3.2"),
            (["--model", "deepseek-v3", "--ranks", "8", "--gpu", "tpu"], 2, "b200"),
            (["--model", "deepseek-v3", "--ranks", "8", "--fraction", "1.5"], 2, "--fraction"),
            (["--model", "deepseek-v3", "--ranks", "8", "--dtype", "int4"], 2, "name one of auto, fp64"),
            (["--model", "smollm2-mla", "--ranks", "2"], 2, "splash model fetch smollm2-mla"),
            (["--model", "deepseek-v3", "--ranks", "8", "--layouts", "TP,EP"], 2, "TP, CP, DP, DOP"),
            (["--model", "deepseek-v3", "--ranks", "0"], 2, "--ranks"),
            (["--model", "deepseek-v3", "--ranks", "8", "--graphs", "yes"], 2, "name one of auto, on, off"),
        ],
    )
    def test_exit_codes(
        self,
        args: list[str],
        code: int,
        message: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        monkeypatch.setattr("sys.argv", ["splash", "plan", *args])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        assert exit_info.value.code == code
        assert message in capsys.readouterr().err


def test_bad_model_text_lists_known() -> None:
    with pytest.raises(ConfigError, match="glm-5"):
        load_spec("nope")


def test_primitives_of_the_table_are_counted_once() -> None:
    counts = Counter(kind.kv for kind in switch_table(8))
    assert counts == {EXCHANGE: 4, GATHER: 3, Primitive.DISCARD: 3, Primitive.KEEP: 2}


def test_a_fetched_model_is_known_and_a_bad_config_is_named(
    tiny_v3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = tmp_path / "splash" / "models"
    models.mkdir(parents=True)
    (models / "smollm2-mla").symlink_to(tiny_v3)
    assert load_spec("smollm2-mla").layers == load_spec(str(tiny_v3)).layers
    bad = tmp_path / "bad.json"
    for text in ('{"model_type": "gpt2"}', '{"model_type": "deepseek_v3"}', "{"):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=str(bad)):
            load_spec(str(bad))


@pytest.mark.parametrize(
    ("sizes", "nearest"),
    [
        ({"page_size": 10**9}, r"--page-size 64$"),
        ({"chunk_tokens": 10**8}, r"--chunk-tokens 2048$"),
        ({"num_ranks": 100_000, "chunk_tokens": 2048 * 100_000}, r"--chunk-tokens 2048$"),
        ({"page_size": 10**9, "chunk_tokens": 10**8}, r"--page-size 64 --chunk-tokens 2048$"),
        ({"page_size": 10**9, "num_ranks": 2}, r"--page-size 64 --ranks \d+ \("),
    ],
)
def test_sizes_beyond_all_memory_are_told_the_usual_ones(sizes: dict[str, int], nearest: str) -> None:
    wanted = replace(deployment("h200", ranks=8, fraction=0.9, dtype="fp8"), **sizes)  # type: ignore[arg-type]
    with pytest.raises(Infeasible) as raised:
        build_plan(named_spec("deepseek-v3.2"), named_gpu("h200"), wanted)
    assert re.match(nearest, raised.value.nearest or "")
