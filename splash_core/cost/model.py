"""Predicted time of a load in a layout: the stage-wise model, docs/model.md §6 equation (10).

    t = t_proj + t_attn + t_exchange + t_common

Each stage takes the rank that has most of it. Stages depend on a layout's *rule* (where projections and
histories live), never on its name, so a new rule is priced without a change here.

Legend: T ranks, N rows, N_j rows at home on rank j, K steps, H heads, d, r_q, r, p, n, v as in docs/model.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from splash_core.cost.common import common_time, ends_time
from splash_core.cost.exchange import exchange_time
from splash_core.cost.load import Load, OwnerLoad
from splash_core.cost.precision import Precision
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.shares import Shares
from splash_core.cost.step_kind import StepKind
from splash_core.layout.forms import AttentionForm, CpStorage, KernelLibrary, may_expand
from splash_core.layout.layout import KvHistory, LayoutRule, Matrix
from splash_core.spec.model import ModelSpec

ALL_FORMS = (AttentionForm.ABSORBED, AttentionForm.EXPANDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of a load in one layout, over all its steps and layers, and the form that gives them."""

    projections_s: float
    attention_s: float
    exchange_s: float
    common_s: float
    overhead_s: float
    steps: int
    kind: StepKind
    form: AttentionForm
    storage: CpStorage

    @property
    def total_s(self) -> float:
        """All stages."""
        return self.projections_s + self.attention_s + self.exchange_s + self.common_s + self.overhead_s

    @property
    def step_s(self) -> float:
        """Mean time of one step."""
        return self.total_s / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The model of one deployment: what is served, in which types, on what."""

    spec: ModelSpec
    precision: Precision
    profile: HardwareProfile
    num_ranks: int
    forms: tuple[AttentionForm, ...] = ALL_FORMS
    """Forms that prefill rows may take, where the layout allows them."""
    library: KernelLibrary = KernelLibrary.TORCH
    """What computes attention there: the same in all layouts, for records."""

    @property
    def top_k(self) -> int | None:
        """Most keys a row attends to, or None with dense attention."""
        return None if self.spec.indexer is None else self.spec.indexer.top_k

    def predict(self, rule: LayoutRule, load: Load, *, kind: StepKind) -> Prediction:
        """The time of `load` under `rule`, in the fastest form that the rule allows.

        Args:
            rule: the layout's rule.
            load: rows and histories per owner.
            kind: of its steps.
        """
        options = self._options(rule, load, decode=kind.decodes)
        return min(
            (self.predict_as(rule, load, form=form, storage=storage, kind=kind) for form, storage in options),
            key=lambda prediction: prediction.total_s,
        )

    def _options(
        self, rule: LayoutRule, load: Load, *, decode: bool
    ) -> Iterator[tuple[AttentionForm, CpStorage]]:
        if decode:
            yield AttentionForm.ABSORBED, CpStorage.PASS_Q
            return
        striped = rule.history is KvHistory.STRIPED
        # Rows that choose their own keys share no expanded key, so sparse attention is absorbed.
        sparse = load.total.chosen_pairs < load.total.pairs
        for form in self.forms:
            if form is AttentionForm.EXPANDED and (sparse or not may_expand(rule)):
                continue
            yield form, CpStorage.PASS_Q
            if striped:
                yield form, CpStorage.PASS_KV

    def predict_as(
        self, rule: LayoutRule, load: Load, *, form: AttentionForm, storage: CpStorage, kind: StepKind
    ) -> Prediction:
        """As `predict`, in one form."""
        shares = Shares.of(rule, load, storage=storage)
        layers = self.spec.num_mla_layers
        prediction = Prediction(
            projections_s=layers * self._projections(shares, form),
            attention_s=layers * self._attention(shares, form),
            exchange_s=layers * exchange_time(self.spec, self.precision, self.profile, shares),
            common_s=common_time(self.spec, self.precision, self.profile, shares),
            overhead_s=self._overhead(shares),
            steps=load.steps,
            kind=kind,
            form=form,
            storage=storage,
        )
        return self._launched(prediction) if self._waits_for_launches(kind) else prediction

    def _waits_for_launches(self, kind: StepKind) -> bool:
        """A CPU computes a replayed step kernel by kernel too: its overheads are those of decode steps."""
        launched = kind is StepKind.LAUNCHED and self.profile.device != "cpu"
        return launched or kind is StepKind.PROMPTS

    def _launched(self, prediction: Prediction) -> Prediction:
        """Steps that are not replayed take no less than their launches, by a host that may run ahead."""
        computed = prediction.total_s
        launches = prediction.steps * self.spec.layers * self.profile.eager_layer_s
        more = self.profile.roofline(computed, launches) - computed
        return replace(prediction, overhead_s=prediction.overhead_s + more)

    def outside_layers_s(self, rule: LayoutRule, load: Load) -> float:
        """Of a load, what is not in any layer."""
        shares = Shares.of(rule, load, storage=CpStorage.PASS_Q)
        ends = ends_time(self.spec, self.precision, self.profile, shares)
        return ends + shares.steps * self.profile.step_overhead_s + shares.drawn * self.profile.draw_s

    def _overhead(self, shares: Shares) -> float:
        """What neither bytes nor flops explain: small kernels, the host's work for rows."""
        profile = self.profile
        runs = max(work.runs for work in shares.attending)
        per_layer = shares.steps * profile.layer_overhead_s + runs * profile.run_s
        per_layer += shares.home_rows * profile.row_s
        per_layer += shares.row_heads(self.spec.heads, Matrix.Q_B) * profile.head_s
        if shares.merges:
            parts = shares.total.rows * self.spec.heads
            per_layer += shares.steps * profile.merge_s + parts * profile.part_s
        per_step = shares.steps * profile.step_overhead_s + shares.drawn * profile.draw_s
        per_step += shares.steps * profile.served_step_s + shares.total.samples * profile.served_token_s
        return self.spec.layers * per_layer + per_step

    def _projections(self, shares: Shares, form: AttentionForm) -> float:
        """t_proj of one layer: W_QA, W_KVA at home, W_QB, W_UK, W_UV where a head's rows are, W_O."""
        spec = self.spec
        low_rank = spec.hidden * (spec.kv_row + (spec.q_lora_rank or 0))
        flops = 2 * shares.home_rows * low_rank
        flops += 2 * shares.row_heads(spec.heads, Matrix.Q_B) * spec.qk_dim * spec.q_in
        if form is AttentionForm.ABSORBED:
            absorb = spec.kv_lora_rank * (spec.nope_dim + spec.v_dim)
            flops += 2 * shares.row_heads(spec.heads, Matrix.KV_B) * absorb
        flops += 2 * shares.row_heads(spec.heads, Matrix.O) * spec.v_dim * spec.hidden
        weights = low_rank * self.precision.weight_bytes + sum(
            self.precision.read_bytes(spec, matrix) * shares.fraction(matrix) for matrix in Matrix
        )
        profile = self.profile
        return profile.roofline(flops / profile.flops, shares.steps * weights / profile.weight_read_bps)

    def _attention(self, shares: Shares, form: AttentionForm) -> float:
        """t_attn of one layer: the rank with most work sets the pace."""
        return max(self._attend(work, shares, form) for work in shares.attending)

    def _attend(self, work: OwnerLoad, shares: Shares, form: AttentionForm) -> float:
        return self.attend_s(work, form, heads=self.spec.heads * shares.head_fraction) + self._index(work)

    def attend_s(self, work: OwnerLoad, form: AttentionForm, *, heads: float) -> float:
        """Attention proper of one layer and rank, with so many heads."""
        spec, profile = self.spec, self.profile
        if work.chosen_pairs < work.pairs:
            # Each row has its own keys: only heads fill a tile.
            heads = max(heads, min(profile.sparse_head_tile, spec.heads))
        if form is AttentionForm.ABSORBED:
            per_pair = 2 * spec.kv_lora_rank + spec.rope_dim
            expansion = 0.0
        else:
            per_pair = spec.nope_dim + spec.rope_dim + spec.v_dim
            expand = spec.kv_lora_rank * (spec.nope_dim + spec.v_dim)
            expansion = 2 * work.keys * heads * expand / profile.flops
        rate = profile.attention_flops if form is AttentionForm.ABSORBED else profile.expanded_flops
        compute = 2 * work.chosen_pairs * heads * per_pair / rate + expansion
        read = work.chosen_keys * self.precision.latent_row_bytes(spec) / profile.kv_read_bps
        return profile.roofline(compute, read)

    def _index(self, work: OwnerLoad) -> float:
        """Scoring keys for sparse attention; index heads are summed before top-k, so never split."""
        spec, indexer = self.spec, self.spec.indexer
        if indexer is None:
            return 0.0
        width = indexer.num_heads * indexer.head_dim
        flops = 2 * width * (work.pairs + work.rows * spec.q_in)
        read = work.keys * self.precision.index_row_bytes(spec)
        time = self.profile.roofline(flops / self.profile.flops, read / self.profile.kv_read_bps)
        return time * indexer.layers / spec.num_mla_layers
