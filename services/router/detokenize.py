"""Token ids to text, one token at a time.

A token may hold part of a character only. Invariant: the pieces returned by `push`, with the last one
by `flush`, concatenate to the text of all bytes; a piece never ends inside a character, and what stays
incomplete at the end becomes U+FFFD once.
"""

import codecs
from collections.abc import Callable


class Detokenizer:
    """The text state of one sequence."""

    def __init__(self, token_bytes: Callable[[int], bytes], is_special: Callable[[int], bool]) -> None:
        self._token_bytes = token_bytes
        self._is_special = is_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; empty while one is incomplete."""
        if self._is_special(token):
            return ""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """What is still held, at the end of the sequence."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
