"""The least time that a step can take on given devices: bytes that must be read, flops that must be computed.

Pure arithmetic; the results page states the same formulas. A floor is optimistic on purpose: it knows no
launches, no small kernels, no waiting, and each rank always has the busiest one's work in memory and an even
share of what is bound by flops. Only what it leaves out explains the difference to what is measured.

Legend: T ranks, E routed experts, k of them chosen by a row, H heads, r, p, n, v as in docs/model.md.
"""

from dataclasses import dataclass

from splash_core.cost.footprint import ModelBytes
from splash_core.cost.load import Load, Rows
from splash_core.cost.precision import Precision
from splash_core.cost.shares import Shares
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import RULES, Layout, Matrix
from splash_core.spec.hardware import GpuSpec
from splash_core.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFloor:
    """One decode step, without its collectives, in milliseconds."""

    weights: float
    attention: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Floors of one model on T devices of a kind."""

    spec: ModelSpec
    precision: Precision
    num_ranks: int
    memory_bps: float
    """Bytes that a device reads per second at most."""
    flops: float
    attention_flops: float

    @classmethod
    def of(cls, spec: ModelSpec, precision: Precision, num_ranks: int, gpu: GpuSpec) -> "Floors | None":
        """Those of a device's attainable rates; None where it has no rate for the element type."""
        if precision.name not in gpu.flops:
            return None
        return cls(
            spec=spec,
            precision=precision,
            num_ranks=num_ranks,
            memory_bps=gpu.weight_read_bps,
            flops=gpu.flops[precision.name],
            attention_flops=gpu.attention_flops[precision.name],
        )

    def decode(self, layout: Layout, batch: int, context: int) -> DecodeFloor:
        """One row of each of `batch` requests over `context` cached tokens each."""
        spec = self.spec
        rows = [Rows(rows=1, context=context, owner=index) for index in range(batch)]
        load = Load.of(rows, num_ranks=self.num_ranks)
        shares = Shares.of(RULES[layout], load, storage=CpStorage.PASS_Q)
        row_bytes = self.precision.latent_row_bytes(spec)
        flops = 2 * spec.heads * shares.head_fraction * (spec.kv_row + spec.kv_lora_rank)
        layer_s = max(
            max(work.keys * row_bytes / self.memory_bps, work.pairs * flops / self.attention_flops)
            for work in shares.attending
        )
        return DecodeFloor(
            weights=1e3 * self.decode_weight_bytes(layout, batch) / self.memory_bps,
            attention=1e3 * spec.num_mla_layers * layer_s,
        )

    def decode_weight_bytes(self, layout: Layout, batch: int) -> float:
        """Bytes of weights that the fullest rank reads in a step of `batch` rows.

        Of routed experts those that some row chooses, if choices are even: all but (1 − k/E)^batch of them.
        Of the embedding nothing.
        """
        spec, ranks = self.spec, self.num_ranks
        model = ModelBytes.of(spec, self.precision, num_ranks=ranks)
        touched = 1.0
        if spec.moe is not None:
            touched -= (1.0 - spec.moe.top_k / spec.moe.num_experts) ** batch
        nothing = Load.of([Rows(rows=1, context=0)], num_ranks=ranks)
        shares = Shares.of(RULES[layout], nothing, storage=CpStorage.PASS_Q)
        projections = spec.num_mla_layers * sum(
            self.precision.read_bytes(spec, matrix) * shares.fraction(matrix) for matrix in Matrix
        )
        head = spec.vocab * spec.hidden * self.precision.activation_bytes / ranks
        return model.experts * touched + model.ffn + model.replicated + model.linear + projections + head

    def prefill(self, batch: int, length: int) -> float:
        """All of `batch` prompts of `length` tokens, each with a token drawn for it, in milliseconds.

        The same for all layouts: flops of the cheaper (expanded) form of attention, evenly over the ranks,
        history expanded once.
        """
        spec = self.spec
        linear = 2 * batch * (length * row_elements(spec) + spec.hidden * spec.vocab)
        pairs = batch * length * (length + 1) / 2
        attention = 2 * pairs * spec.heads * (spec.qk_dim + spec.v_dim) * spec.num_mla_layers
        return 1e3 * (linear / self.flops + attention / self.attention_flops) / self.num_ranks


def row_elements(spec: ModelSpec) -> float:
    """Elements of the matrices that a row is multiplied with in all layers; attention and head left out."""
    low_rank = spec.hidden * (spec.kv_row + (spec.q_lora_rank or 0))
    per_head = (
        spec.qk_dim * spec.q_in + spec.kv_lora_rank * (spec.nope_dim + spec.v_dim) + spec.v_dim * spec.hidden
    )
    attention = spec.num_mla_layers * (low_rank + spec.heads * per_head)
    dense_layers = spec.layers if spec.moe is None else spec.moe.first_dense
    ffn = dense_layers * 3 * spec.hidden * spec.dense_intermediate
    if spec.moe is not None:
        chosen = 3 * (spec.moe.top_k * spec.moe.intermediate + spec.moe.shared_intermediate)
        ffn += (spec.layers - dense_layers) * spec.hidden * (chosen + spec.moe.num_experts)
    return attention + ffn
