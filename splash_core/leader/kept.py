"""Texts that a router has a group keep for it: by name, for as long as the leader lives."""

from splash_core.errors import InvalidRequest

MOST_KEPT = 2 << 20
"""Characters of all together: what a router knows of its probes takes 30 KiB for each set of prompts."""
MOST_NAMES = 16
LONGEST_NAME = 64


class KeptTexts:
    """What one leader keeps."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def keep(self, name: str, text: str) -> None:
        """Keep a text in place of the one of that name; an empty one is forgotten.

        Raises:
            InvalidRequest: there is no room for it, or for one more name.
        """
        if not 0 < len(name) <= LONGEST_NAME:
            told = f"a name of {len(name)} characters; a group keeps texts under names of 1 to {LONGEST_NAME}"
            raise InvalidRequest(told, param="name")
        if text and len({*self._texts, name}) > MOST_NAMES:
            told = f"{name!r} would be one name more than the {MOST_NAMES} that a group keeps"
            raise InvalidRequest(told, param="name")
        kept = {**self._texts, name: text}
        size = sum(map(len, kept.values()))
        if size > MOST_KEPT:
            told = f"{name!r} would make it {size} characters; a group keeps at most {MOST_KEPT} for a router"
            raise InvalidRequest(told, param="text")
        self._texts = {name: text for name, text in kept.items() if text}

    def get(self, name: str) -> str:
        """What is kept under a name; empty if nothing is."""
        return self._texts.get(name, "")
