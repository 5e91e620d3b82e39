"""Stop strings over streamed text.

Invariant: the text returned never contains a stop string nor a part of one that later text could complete;
the result does not depend on how the text was cut into pieces. Among several stops the one that is completed
first wins, and of those completed by the same character the one that began first.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What may be shown now, and whether a stop string was met (then nothing may follow)."""

    text: str
    matched: str | None = None


class StopMatcher:
    """The stop strings of one sequence and the text held back for them."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Scan:
        """Add text; returns what no stop string can claim any more."""
        if not self._stops:
            return Scan(text=text)
        text = self._held + text
        # The held text has no complete stop, so every match found ends in the new text.
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            _, start, stop = min(found)
            return Scan(text=text[:start], matched=stop)
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return Scan(text=text[: len(text) - keep])

    def flush(self) -> str:
        """The held text, once it is known that nothing follows."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
