"""The stage-wise model: bytes against docs/model.md §4, shares against ownership, bad profiles."""

import json
import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from splash_core.cost.exchange import attention_messages
from splash_core.cost.links import Collective, CollectiveLoad, LinkRate
from splash_core.cost.load import Load, OwnerLoad, Rows
from splash_core.cost.precision import PRECISIONS, named_precision
from splash_core.cost.profile import HardwareProfile, Provenance, analytical_profile
from splash_core.cost.shares import Shares
from splash_core.cost.step_kind import StepKind
from splash_core.cost.switch import SwitchBytes, switch_bytes, switch_cost
from splash_core.errors import ConfigError
from splash_core.layout.forms import AttentionForm, CpStorage, may_expand
from splash_core.layout.layout import RULES, Layout, Matrix
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import GPUS, named_gpu
from splash_core.switch.manifest import SwitchMode
from tests.support.policy_cases import SMOL, cost_model

V3 = named_spec("deepseek-v3")
BF16 = named_precision("bf16")
FP8 = named_precision("fp8")
REPLAYED, PROMPTS = StepKind.REPLAYED, StepKind.PROMPTS


class Traffic(NamedTuple):
    collectives: float
    received_bytes: float


def traffic(layout: Layout, load: Load, storage: CpStorage = CpStorage.PASS_Q) -> Traffic:
    """One layer's attention, in sum."""
    messages = attention_messages(V3, BF16, Shares.of(RULES[layout], load, storage=storage))
    return Traffic(sum(each.count for each in messages), sum(each.received_bytes for each in messages))


def decode_load(count: int, context: int, ranks: int) -> Load:
    return Load.of([Rows(1, context, index) for index in range(count)], num_ranks=ranks)


class TestPrecision:
    def test_fp8_rows_count_scales_rope_and_index(self) -> None:
        spec = named_spec("deepseek-v3.2")
        # 512 fp8 + 4 scales of 4 bytes + 64 bf16 rope; 128 fp8 index key + one scale.
        assert FP8.latent_row_bytes(spec) == 512 + 16 + 128
        assert FP8.index_row_bytes(spec) == 132
        # The paper's payload of DeepSeek-V3.2 over 61 layers.
        assert FP8.kv_token_bytes(spec) == 48_068

    def test_projection_bytes_of_the_table(self) -> None:
        mib = 2**20
        sizes = [BF16.matrix_bytes(V3, matrix) / mib for matrix in (Matrix.Q_B, Matrix.KV_B, Matrix.O)]
        assert sizes == [72, 32, 224]
        assert BF16.projection_bytes(V3) == 328 * mib

    def test_fp8_keeps_two_copies_of_kv_b_and_reads_one(self) -> None:
        glm = named_spec("glm-5")
        missing = FP8.projection_bytes(glm) * 7 / 8
        # 148.75 MiB without block scales, which add 0.02 %.
        assert missing / 2**20 == pytest.approx(148.75, rel=5e-4)
        assert missing * 78 / 2**30 == pytest.approx(11.33, abs=0.01)
        assert FP8.read_bytes(glm, Matrix.KV_B) == pytest.approx(2 * math.prod(glm.kv_b_shape), rel=1e-3)

    def test_unknown_name_lists_known(self) -> None:
        with pytest.raises(ConfigError, match="fp32"):
            named_precision("int3")


class TestLoad:
    def test_decode_row_sees_itself(self) -> None:
        assert OwnerLoad.of(Rows(1, 9), top_k=None) == OwnerLoad(1, 10, 10, 10, 10, 1)

    @pytest.mark.parametrize(("rows", "context", "top_k"), [(5, 0, 3), (5, 2, 3), (4, 7, 3), (3, 0, 8)])
    def test_pairs_are_counted_as_by_hand(self, rows: int, context: int, top_k: int) -> None:
        load = OwnerLoad.of(Rows(rows, context), top_k=top_k)
        seen = [context + row + 1 for row in range(rows)]
        assert load.pairs == sum(seen)
        assert load.chosen_pairs == sum(min(keys, top_k) for keys in seen)

    def test_keys_are_read_once_per_visit(self) -> None:
        # Two visits of 8 rows after 100: 108 keys, then 116.
        assert OwnerLoad.of(Rows(16, 100, visits=2), top_k=None).keys == 108 + 116

    def test_sums_per_owner(self) -> None:
        load = Load.of([Rows(1, 9, 0), Rows(1, 19, 1), Rows(1, 29, 3)], num_ranks=2)
        assert [owner.keys for owner in load.owners] == [10, 20 + 30]
        assert load.total.rows == 3


class TestExchange:
    """Received bytes per layer against docs/model.md §4; rows balanced, T = 4, B = 16."""

    load = decode_load(16, 4096, 4)

    def test_tp_gathers_rows_and_scatters_hidden(self) -> None:
        rows = 16 * 3 / 4
        expected = rows * (1536 + 512 + 64) * 2 + rows * 7168 * 2
        assert traffic(Layout.TP, self.load) == Traffic(2, expected)

    def test_dp_is_silent(self) -> None:
        assert traffic(Layout.DP, self.load) == Traffic(0, 0)

    def test_dop_exchange_is_equation_4(self) -> None:
        exchange = 4 * (3 / 4) * 128 * (2 * 512 + 64) * 2
        gather, scatter = 12 * 1536 * 2, 12 * 7168 * 2
        assert traffic(Layout.DOP, self.load) == Traffic(4, exchange + gather + scatter)

    def test_dop_p_exchanges_n_p_v(self) -> None:
        # 320 numbers a head for 1,088.
        exchange = 4 * (3 / 4) * 128 * (128 + 64 + 128) * 2
        gather, scatter = 12 * 1536 * 2, 12 * 7168 * 2
        assert traffic(Layout.DOP_P, self.load) == Traffic(4, exchange + gather + scatter)
        assert may_expand(RULES[Layout.DOP_P])
        assert not may_expand(RULES[Layout.DOP])

    def test_cp_decode_returns_values_and_lse(self) -> None:
        expected = 12 * 1536 * 2 + 3 * 4 * 128 * (128 * 2 + 4)
        assert traffic(Layout.CP, self.load) == Traffic(2, expected)

    def test_cp_pass_kv_gathers_history_and_chunk(self) -> None:
        load = Load.of([Rows(1024, 8192)], num_ranks=4)
        expected = (8192 + 1024) * (3 / 4) * 576 * 2
        assert traffic(Layout.CP, load, CpStorage.PASS_KV) == Traffic(2, expected)

    @pytest.mark.parametrize("layout", list(Layout))
    def test_one_rank_sends_nothing(self, layout: Layout) -> None:
        assert traffic(layout, decode_load(3, 10, 1)) == Traffic(0, 0)


class TestPredict:
    def test_all_layouts_agree_on_one_rank_but_for_nothing(self) -> None:
        model = cost_model(ranks=1)
        times = {
            model.predict(rule, decode_load(4, 100, 1), kind=REPLAYED).total_s for rule in RULES.values()
        }
        assert max(times) == pytest.approx(min(times))

    def test_decode_reads_follow_the_rules(self) -> None:
        # V3 in bf16, T = 4, B = 16, 4K: with compute for free only reads are left.
        model = cost_model(V3, gpu="h200", dtype="bf16", ranks=4)
        free = replace(
            model,
            profile=replace(
                model.profile, flops=1e30, attention_flops=1e30, weight_read_bps=1.0, kv_read_bps=1.0
            ),
        )
        load = decode_load(16, 4096, 4)
        read = {}
        for layout in Layout:
            stages = free.predict(RULES[layout], load, kind=REPLAYED)
            read[layout] = stages.attention_s
        history = 61 * 16 * 4097 * 1152
        assert read[Layout.TP] == history
        assert {read[layout] for layout in Layout if layout is not Layout.TP} == {history / 4}
        sharded = free.predict(RULES[Layout.DOP], load, kind=REPLAYED).projections_s
        replicated = free.predict(RULES[Layout.DP], load, kind=REPLAYED).projections_s
        assert replicated - sharded == pytest.approx(61 * 328 * 2**20 * 3 / 4)
        variant = free.predict(RULES[Layout.DOP_P], load, kind=REPLAYED).projections_s
        assert variant - sharded == pytest.approx(61 * 32 * 2**20 * 3 / 4)

    def test_decode_is_absorbed_and_dop_prefill_too(self) -> None:
        model = cost_model(V3, gpu="h200", dtype="bf16", ranks=8)
        prompt = Load.of([Rows(8192, 0)], num_ranks=8)
        assert model.predict(RULES[Layout.TP], prompt, kind=PROMPTS).form is AttentionForm.EXPANDED
        assert model.predict(RULES[Layout.DOP], prompt, kind=PROMPTS).form is AttentionForm.ABSORBED
        assert model.predict(RULES[Layout.DOP_P], prompt, kind=PROMPTS).form is AttentionForm.EXPANDED
        step = decode_load(8, 8192, 8)
        assert model.predict(RULES[Layout.TP], step, kind=REPLAYED).form is AttentionForm.ABSORBED

    def test_sparse_rows_are_absorbed(self) -> None:
        model = cost_model(named_spec("deepseek-v3.2"), gpu="h200", dtype="fp8", ranks=8)
        prompt = Load.of([Rows(8192, 0)], num_ranks=8, top_k=model.top_k)
        assert model.predict(RULES[Layout.DP], prompt, kind=PROMPTS).form is AttentionForm.ABSORBED

    def test_skew_costs_owners_and_not_stripes(self) -> None:
        model = cost_model()
        even = Load.of([Rows(1, 1000, 0), Rows(1, 1000, 1)], num_ranks=2)
        skewed = Load.of([Rows(1, 1000, 0), Rows(1, 1000, 0)], num_ranks=2)
        for layout in (Layout.DP, Layout.DOP):
            slow = model.predict(RULES[layout], skewed, kind=REPLAYED)
            assert slow.attention_s == 2 * model.predict(RULES[layout], even, kind=REPLAYED).attention_s
        for layout in (Layout.TP, Layout.CP):
            assert model.predict(RULES[layout], skewed, kind=REPLAYED) == model.predict(
                RULES[layout], even, kind=REPLAYED
            )

    def test_latencies_count_once_a_step(self) -> None:
        model = cost_model()
        slow = replace(model.profile, collective_latency_s=model.profile.collective_latency_s + 1.0)
        slower = replace(model, profile=slow)
        load = Load.of([Rows(100, 0, 0)], num_ranks=2, steps=7)
        # TP: 2 collectives a layer for attention, 2 for the FFN, 3 a step for embedding and head.
        extra = (
            slower.predict(RULES[Layout.TP], load, kind=PROMPTS).total_s
            - model.predict(RULES[Layout.TP], load, kind=PROMPTS).total_s
        )
        assert extra == pytest.approx(7 * (30 * 4 + 3))


class TestSwitchCost:
    owners = (1000, 3000)

    def moved(self, layout_from: Layout, layout_to: Layout) -> SwitchBytes:
        return switch_bytes(
            SMOL, PRECISIONS["fp32"], RULES[layout_from], RULES[layout_to], owner_tokens=self.owners
        )

    def test_bytes_of_each_kind(self) -> None:
        row, weights = 512 * 4, PRECISIONS["fp32"].projection_bytes(SMOL) // 2
        assert self.moved(Layout.TP, Layout.DP) == SwitchBytes(weights=weights, kv=0)
        assert self.moved(Layout.TP, Layout.DOP) == SwitchBytes(weights=0, kv=0)
        assert self.moved(Layout.DP, Layout.DOP) == SwitchBytes(weights=0, kv=0)
        assert self.moved(Layout.DP, Layout.TP) == SwitchBytes(weights=0, kv=3000 * row)
        assert self.moved(Layout.CP, Layout.TP) == SwitchBytes(weights=0, kv=2000 * row)
        assert self.moved(Layout.DP, Layout.CP) == SwitchBytes(weights=0, kv=1500 * row)
        assert self.moved(Layout.CP, Layout.DP) == SwitchBytes(weights=0, kv=1500 * row)
        assert self.moved(Layout.DOP, Layout.CP) == SwitchBytes(weights=weights, kv=1500 * row)
        kv_b = SMOL.heads * (SMOL.nope_dim + SMOL.v_dim) * SMOL.kv_lora_rank * 4 // 2
        assert self.moved(Layout.DOP, Layout.DOP_P) == SwitchBytes(weights=kv_b, kv=0)
        assert self.moved(Layout.DOP_P, Layout.DP) == SwitchBytes(weights=weights - kv_b, kv=0)
        assert self.moved(Layout.DOP_P, Layout.TP) == SwitchBytes(weights=0, kv=3000 * row)

    def test_equation_7(self) -> None:
        profile = replace(cost_model().profile, collective_latency_s=0.0, link_bps=1000.0, interference=0.25)
        slow = switch_cost(profile, SwitchBytes(weights=1000, kv=2000), layers=4, step_s=8.0)
        # tau = 3 s a layer, c = 2 s: 3 + 3·(3 - 2) exposed, 3·2 hidden.
        assert (slow.exposed_s, slow.contention_s, slow.bytes_per_rank) == (6.0, 1.5, 12_000)
        assert (slow.slowed_s, slow.stall_s, slow.total_s) == (1.5, 7.5, 7.5)
        quick = switch_cost(profile, SwitchBytes(weights=1000, kv=0), layers=4, step_s=8.0)
        assert (quick.exposed_s, quick.contention_s) == (1.0, 0.75)

    def test_blocking_exposes_everything(self) -> None:
        profile = replace(cost_model().profile, collective_latency_s=0.0, link_bps=1000.0)
        cost = switch_cost(
            profile, SwitchBytes(weights=1000, kv=0), layers=4, step_s=8.0, mode=SwitchMode.BLOCKING
        )
        assert (cost.exposed_s, cost.contention_s, cost.stall_s) == (4.0, 0.0, 4.0)

    def test_pushes_under_way_delay_only_what_moves(self) -> None:
        profile = replace(cost_model().profile, link_bps=1000.0)
        nothing = switch_cost(profile, SwitchBytes(weights=0, kv=0), layers=4, step_s=8.0, pending_bytes=500)
        assert nothing.total_s == 0.0
        something = SwitchBytes(weights=1, kv=0)
        with_pushes = switch_cost(profile, something, layers=4, step_s=8.0, pending_bytes=500)
        alone = switch_cost(profile, something, layers=4, step_s=8.0)
        assert with_pushes.total_s - alone.total_s == pytest.approx(0.5)


class TestProfile:
    profile = analytical_profile(named_gpu("h200"), dtype="bf16")

    def test_round_trip(self) -> None:
        assert HardwareProfile.from_json(self.profile.to_json()) == self.profile
        rates = (LinkRate(latency_s=1e-5, bps=1e9, most_bytes=4096), LinkRate(latency_s=2e-5, bps=2e9))
        measured = replace(
            self.profile,
            ranks=2,
            overlap=0.25,
            collectives={"gather": rates},
            provenance=Provenance(source="measured", model="v3", residuals={"decode/TP": 0.1}),
        )
        assert HardwareProfile.from_json(measured.to_json()) == measured

    @pytest.mark.parametrize(
        ("group", "message"),
        [
            ({"device": "cpu", "dtype": "bf16", "ranks": 8}, "is for device cuda, the group has device cpu"),
            ({"device": "cuda", "dtype": "fp32", "ranks": 8}, "is for dtype bf16, the group has dtype fp32"),
            ({"device": "cuda", "dtype": "bf16", "ranks": 4}, "is for ranks 8, .* calibrate --ranks 4"),
        ],
    )
    def test_a_profile_of_another_group_is_refused(self, group: dict[str, Any], message: str) -> None:
        profile = replace(self.profile, ranks=8)
        profile.check_group(device="cuda", dtype="bf16", ranks=8)
        self.profile.check_group(device="cuda", dtype="bf16", ranks=3)
        with pytest.raises(ConfigError, match=message):
            profile.check_group(**group)

    def test_collectives_have_rates_by_kind_and_size(self) -> None:
        small, large = LinkRate(latency_s=1.0, bps=10.0, most_bytes=100), LinkRate(latency_s=5.0, bps=100.0)
        profile = replace(
            self.profile, link_bps=1.0, collective_latency_s=7.0, collectives={"gather": (small, large)}
        )
        assert profile.messages_s([CollectiveLoad(Collective.GATHER, 2, 200)]) == 2 * 1.0 + 20.0
        assert profile.messages_s([CollectiveLoad(Collective.GATHER, 2, 202)]) == 2 * 5.0 + 2.02
        assert (
            profile.messages_s(
                [CollectiveLoad(Collective.EXCHANGE, 3, 9), CollectiveLoad(Collective.SCATTER, 0, 0)]
            )
            == 30.0
        )

    def test_what_does_not_overlap_adds_up(self) -> None:
        assert self.profile.roofline(3.0, 2.0) == 3.0
        assert replace(self.profile, overlap=0.25).roofline(2.0, 4.0) == 5.5

    @pytest.mark.parametrize("name", list(GPUS))
    def test_every_device_gives_profiles(self, name: str) -> None:
        for dtype in (*GPUS[name].flops, *GPUS[name].vector_flops):
            profile = analytical_profile(GPUS[name], dtype=dtype)
            assert profile.flops > profile.attention_flops > 0
            assert profile.provenance.source == "analytical"
            assert len(profile.provenance.note) > 40
            assert profile.device == ("cpu" if name == "cpu" else "cuda")

    def test_missing_rate_names_those_known(self) -> None:
        with pytest.raises(ConfigError, match="has no rate for 'fp8'; choose one of bf16"):
            analytical_profile(named_gpu("a100"), dtype="fp8")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 1}, "is of version 1, and version 2 is read here; run `splash calibrate` again"),
            ({"device": None}, "device: text"),
            ({"overlap": 1.5}, "overlap: must be at most 1"),
            ({"collectives": {"gather": []}}, "collectives.gather: a list of at least one rate"),
            ({"collectives": {"shout": []}}, "collectives.shout: unknown; known: gather, exchange, scatter"),
            (
                {"collectives": {"gather": [{"latency_s": 0, "bps": 0}]}},
                "collectives.gather.bps: must be above 0",
            ),
            ({"flops": 0}, "flops: must be above 0"),
            ({"flops": "fast"}, "flops: a finite number"),
            ({"link_bps": True}, "link_bps"),
            ({"interference": -1}, "interference: must not be negative"),
            ({"name": 3}, "name: text"),
            ({"warp": 9}, "warp: unknown"),
            ({"provenance": {"source": "guessed"}}, "provenance.source"),
            ({"provenance": {"source": "measured", "residuals": {"flops": "x"}}}, "residuals.flops"),
            ({"provenance": 1}, "provenance"),
        ],
    )
    def test_errors_name_the_field(self, change: dict[str, object], message: str) -> None:
        values = {**json.loads(self.profile.to_json()), **change}
        with pytest.raises(ConfigError, match=message):
            HardwareProfile.from_json(json.dumps(values))

    def test_missing_field_and_bad_json(self) -> None:
        values = json.loads(self.profile.to_json())
        del values["kv_read_bps"]
        with pytest.raises(ConfigError, match="kv_read_bps"):
            HardwareProfile.from_json(json.dumps(values))
        with pytest.raises(ConfigError, match="not JSON"):
            HardwareProfile.from_json("{")
        with pytest.raises(ConfigError, match="object"):
            HardwareProfile.from_json("[]")

    def test_unknown_device_lists_known(self) -> None:
        with pytest.raises(ConfigError, match="h200"):
            named_gpu("tpu")
