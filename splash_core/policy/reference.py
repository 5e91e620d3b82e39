"""All keys of a policy document with their defaults, for people; the documentation has the same table."""

from splash_core.layout.layout import Layout
from splash_core.policy.config import GroupPolicy
from splash_core.policy.keys import KEYS, plain


def key_lines() -> list[str]:
    """A Markdown table: key, default, meaning."""
    rows = [f"| `{key.name}` | {_default(key.name)} | {key.doc} |" for key in KEYS.values()]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


def _default(name: str) -> str:
    policy = GroupPolicy()
    own = name in GroupPolicy.__dataclass_fields__
    value = getattr(policy if own else policy.config, name)
    if value == tuple(Layout):
        return "all"
    shown = plain(value)
    return f"{shown:g}" if isinstance(shown, float) else str(shown).lower()
