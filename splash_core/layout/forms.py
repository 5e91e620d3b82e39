"""How a layout runs a prefill step: choices that the policy makes and the engine obeys (design §4)."""

from enum import StrEnum


class AttentionForm(StrEnum):
    """How prefill rows attend. Decode rows are always absorbed."""

    ABSORBED = "absorbed"
    EXPANDED = "expanded"


class CpStorage(StrEnum):
    """What crosses ranks in a step over striped histories: the queries, or the history."""

    PASS_Q = "pass_q"
    PASS_KV = "pass_kv"
