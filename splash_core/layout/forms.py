"""How a layout runs a prefill step: choices that the policy makes and the engine obeys (docs/model.md §4)."""

from enum import StrEnum

from splash_core.layout.layout import KvHistory, LayoutRule, Matrix, Projection


class AttentionForm(StrEnum):
    """How prefill rows attend. Decode rows are always absorbed."""

    ABSORBED = "absorbed"
    EXPANDED = "expanded"


class CpStorage(StrEnum):
    """What crosses ranks in a step over striped histories: the queries, or the history."""

    PASS_Q = "pass_q"
    PASS_KV = "pass_kv"


def may_expand(rule: LayoutRule) -> bool:
    """True when the rank that holds a history also holds the KV-B heads that read it."""
    return rule.history is KvHistory.ALL or rule.projections[Matrix.KV_B] is Projection.REPLICATED
