"""Settings of `splash bench burst`. Invariant: what a result depends on is a field here or in its base."""

from dataclasses import dataclass

from services.bench.live_settings import LiveSettings
from splash_core.settings_base import COUNT, Range, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSettings(LiveSettings):
    """`splash bench burst`."""

    bursts: str = setting(
        "1:512:16,16:128:32,64:32:32",
        "Requests:prompt tokens:generated tokens of each burst, a list; an arm runs them in this order.",
    )
    arms: str = setting(
        "TP/TP,CP/CP,DP/DP,DOP/DOP,policy",
        "Layouts of prefill and decode, or what --policy does; a list.",
    )
    runs: int = setting(1, "Runs; in each, every arm once.", within=Range(least=1, most=31))
    budget_s: float = setting(0.0, "Begin no arm that may end later than this; 0: no limit.", unit="s")
    chunk_tokens: int = setting(8192, "Most prompt tokens in one step.", unit="tokens", within=COUNT)
