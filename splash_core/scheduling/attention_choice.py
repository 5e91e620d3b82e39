"""How a step attends: by the deployment's cost model, or where there is none by arithmetic on shapes.

A step's form and what crosses ranks over striped histories are chosen here and nowhere else (docs/model.md
§4): the policy's records name what `Fastest` answers for the rows that it sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from splash_core.cost.load import Rows
from splash_core.cost.model import CostModel
from splash_core.cost.step_choice import StepChoice, choose_step
from splash_core.layout.forms import AttentionForm, CpStorage, may_expand
from splash_core.layout.layout import KvHistory, LayoutRule
from splash_core.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """Rows of one sequence in a step: `count` rows after `start` cached tokens."""

    start: int
    count: int
    owner: int = 0
    """Preferred owner of its history."""

    @property
    def end(self) -> int:
        """Keys that the last row sees."""
        return self.start + self.count

    @property
    def pairs(self) -> int:
        """Causal (query, key) pairs."""
        return self.count * self.start + self.count * (self.count + 1) // 2


def absorbed_flops(spec: ModelSpec, chunks: Sequence[ChunkShape]) -> int:
    """Per head and layer: scores and output over latents, and both absorptions once per row."""
    latent, rope = spec.kv_lora_rank, spec.rope_dim
    per_row = 2 * latent * (spec.nope_dim + spec.v_dim)
    return sum(chunk.pairs * 2 * (2 * latent + rope) + chunk.count * per_row for chunk in chunks)


def expanded_flops(spec: ModelSpec, chunks: Sequence[ChunkShape]) -> int:
    """Per head and layer: scores and output over heads' own keys and values, each key expanded once."""
    per_pair = 2 * (spec.nope_dim + spec.rope_dim + spec.v_dim)
    per_key = 2 * spec.kv_lora_rank * (spec.nope_dim + spec.v_dim)
    return sum(chunk.pairs * per_pair + chunk.end * per_key for chunk in chunks)


def choose_form(spec: ModelSpec, rule: LayoutRule, chunks: Sequence[ChunkShape]) -> AttentionForm:
    """The form with fewer flops for the step's chunks; single rows are absorbed anyway."""
    many = [chunk for chunk in chunks if chunk.count > 1]
    if not many or not may_expand(rule):
        return AttentionForm.ABSORBED
    if expanded_flops(spec, many) < absorbed_flops(spec, many):
        return AttentionForm.EXPANDED
    return AttentionForm.ABSORBED


def choose_cp_storage(spec: ModelSpec, rule: LayoutRule, chunks: Sequence[ChunkShape]) -> CpStorage:
    """Move the queries or the history of a step over striped histories, whichever is fewer numbers.

    Both are counted per rank that is not home: a query row travels as q_a (or h) and comes back as output
    and log-sum-exp per head; a history row travels as its KV row. Pass-KV gathers the histories of all
    sequences of the step, so those of decode rows beside a chunk count too.
    """
    if rule.history is not KvHistory.STRIPED or all(chunk.count == 1 for chunk in chunks):
        return CpStorage.PASS_Q
    query_width = spec.hidden if spec.q_lora_rank is None else spec.q_lora_rank
    queries = sum(chunk.count for chunk in chunks) * (query_width + spec.heads * (spec.v_dim + 1))
    history = sum(chunk.start for chunk in chunks) * (spec.kv_lora_rank + spec.rope_dim)
    return CpStorage.PASS_KV if history < queries else CpStorage.PASS_Q


class AttentionChooser(Protocol):
    """Chooses how a step's rows attend."""

    def choose(self, rule: LayoutRule, chunks: Sequence[ChunkShape]) -> StepChoice:
        """The choice for these rows in a layout."""
        ...


@dataclass(frozen=True, slots=True)
class FewestNumbers:
    """Fewest flops and fewest numbers on the wire, for whom no rates are known."""

    spec: ModelSpec

    def choose(self, rule: LayoutRule, chunks: Sequence[ChunkShape]) -> StepChoice:
        """The choice for these rows in a layout."""
        return StepChoice(choose_form(self.spec, rule, chunks), choose_cp_storage(self.spec, rule, chunks))


@dataclass(frozen=True, slots=True)
class Fastest:
    """The least time that the policy's own model predicts."""

    model: CostModel

    def choose(self, rule: LayoutRule, chunks: Sequence[ChunkShape]) -> StepChoice:
        """The choice for these rows in a layout."""
        rows = [Rows(chunk.count, chunk.start, chunk.owner) for chunk in chunks]
        return choose_step(self.model, rule, rows)
