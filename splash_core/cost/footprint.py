"""M_other of docs/model.md §2 (1) from dimensions alone: the model without projections, and working memory.

Everything is per rank and at the worst case: the largest chunk, all of it on one owner. Together with
`layout.memory` this is the account of a deployment that does not exist yet.
"""

from dataclasses import dataclass

from splash_core.cost.precision import Precision
from splash_core.layout.layout import RULES, KvHistory, Layout, Matrix
from splash_core.layout.memory import MemoryAccount, attention_buffer_bytes
from splash_core.spec.model import ModelSpec
from splash_core.units import DENSE_EXPERT_ROWS, STAGING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What `splash plan` is asked about, but for the model."""

    precision: Precision
    num_ranks: int
    memory_bytes: int
    """Device memory of a rank."""
    fraction: float
    page_size: int
    chunk_tokens: int
    """Rows of the largest step of the group."""
    runtime_bytes: int = 0
    """What a process takes on the device before it holds anything."""
    graph_bytes: int = 0
    """Set aside for recorded decode steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """Bytes of the model on one rank, apart from the head-indexed projections."""

    experts: int
    """Routed experts, the fullest rank's."""
    ffn: int
    """Dense FFN layers and shared experts."""
    vocabulary: int
    """Embedding and LM head, sharded."""
    replicated: int
    """W_QA, W_KVA, indexers, routers: whole on every rank."""
    linear: int
    """Linear attention layers of a hybrid, by heads."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.experts + self.ffn + self.vocabulary + self.replicated + self.linear

    @classmethod
    def of(cls, spec: ModelSpec, precision: Precision, *, num_ranks: int) -> "ModelBytes":
        """Count from the dimensions; MTP layers are left out, as they are not served."""
        width, hidden, moe = precision.weight_bytes, spec.hidden, spec.moe
        dense_layers = spec.layers if moe is None else moe.first_dense
        ffn = dense_layers * 3 * hidden * spec.dense_intermediate
        experts = router = 0
        if moe is not None:
            sparse = spec.layers - dense_layers
            experts = sparse * -(-moe.num_experts // num_ranks) * 3 * hidden * moe.intermediate
            ffn += sparse * 3 * hidden * moe.shared_intermediate
            router = sparse * hidden * moe.num_experts
        tables = (1 if spec.tie_embeddings else 2) * spec.vocab * hidden
        return cls(
            experts=round(experts * width),
            ffn=round(ffn * width / num_ranks),
            vocabulary=tables * precision.activation_bytes // num_ranks,
            replicated=round(_low_rank(spec) * width) + router * precision.activation_bytes,
            linear=round(_linear(spec) * width / num_ranks),
        )


def activation_bytes(spec: ModelSpec, layout: Layout, deployment: Deployment) -> int:
    """Peak of the largest step, all of its rows owned by one rank where histories have an owner."""
    ranks, rows = deployment.num_ranks, deployment.chunk_tokens
    width = deployment.precision.activation_bytes
    owned = rows if RULES[layout].history is KvHistory.OWNER else -(-rows // ranks)
    # Gathered rows and partial sums; the residual stream, before and after.
    streams = width * spec.hidden * (2 * rows + 2 * owned)
    attention = sum(
        attention_buffer_bytes(spec, layout, num_ranks=ranks, chunk_tokens=rows, elem_bytes=width)
    )
    inner = 3 * spec.dense_intermediate // ranks
    if spec.moe is not None:
        # Even routing, doubled: each routed row in and out, and its two halves.
        routed = 2 * spec.moe.top_k * (2 * spec.moe.intermediate + 2 * spec.hidden)
        inner = max(inner, (routed + 3 * spec.moe.shared_intermediate) // ranks)
    return streams + max(attention, rows * inner * width, _dense_experts_bytes(spec, deployment))


def memory_account(spec: ModelSpec, deployment: Deployment) -> MemoryAccount:
    """The account of docs/model.md §2 for a deployment on paper."""
    precision = deployment.precision
    model = ModelBytes.of(spec, precision, num_ranks=deployment.num_ranks)
    fixed = model.total + deployment.runtime_bytes + deployment.graph_bytes
    return MemoryAccount(
        spec=spec,
        num_ranks=deployment.num_ranks,
        page_size=deployment.page_size,
        projection_bytes={matrix: precision.matrix_bytes(spec, matrix) for matrix in Matrix},
        token_bytes=precision.kv_token_bytes(spec),
        hbm_bytes=deployment.memory_bytes,
        fraction=deployment.fraction,
        staging_bytes=STAGING_BYTES,
        other_bytes={layout: fixed + activation_bytes(spec, layout, deployment) for layout in Layout},
    )


def _dense_experts_bytes(spec: ModelSpec, deployment: Deployment) -> int:
    """Both halves, their product and the output of every local expert on every row, where rows are few."""
    if spec.moe is None:
        return 0
    rows = min(deployment.chunk_tokens, DENSE_EXPERT_ROWS)
    held = -(-spec.moe.num_experts // deployment.num_ranks)
    numbers = held * rows * (3 * spec.moe.intermediate + spec.hidden)
    return numbers * deployment.precision.activation_bytes


def _low_rank(spec: ModelSpec) -> int:
    attention = spec.num_mla_layers * spec.hidden * (spec.kv_row + (spec.q_lora_rank or 0))
    if spec.indexer is None:
        return attention
    indexer = spec.indexer
    heads = spec.q_in * indexer.num_heads * indexer.head_dim
    return attention + indexer.layers * (heads + spec.hidden * (indexer.head_dim + indexer.num_heads))


def _linear(spec: ModelSpec) -> int:
    """Weights of KDA layers: q, k, v and o, and two low-rank gates (their rank is one head's width)."""
    linear = spec.linear
    if linear is None:
        return 0
    width = linear.heads * linear.head_dim
    gates = 2 * linear.head_dim * (spec.hidden + width) + spec.hidden * linear.heads
    return linear.layers * (4 * spec.hidden * width + gates)
