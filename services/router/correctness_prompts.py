"""The fixed prompts that probes ask, from texts of our own and the model's tokenizer.

Invariant: the same tokenizer and lengths always give the same ids, none of them special but a BOS.
"""

from itertools import cycle, islice

from services.router.tokenizer import Tokenizer

_TEXTS = (
    "One two three four five six seven eight nine ten, and then again from the beginning: ",
    "The river is low in August. Boats that carry gravel turn round at the second bridge and wait there. ",
    "def total(prices):\n    result = 0\n    for price in prices:\n        result += price\n",
    "Take two eggs, a cup of flour and a pinch of salt; stir until the bowl is smooth, then leave it alone. ",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. January, February, March, April, May. ",
    "A lighthouse keeper writes down the wind every hour, although nobody has asked for it in thirty years. ",
    "If every glim is a dorn and no dorn is a vask, then no glim is a vask. Who doubts it may count them. ",
    "Der Zug nach Basel fährt heute von Gleis sieben. Le train de midi part à l'heure. El tren ya se fue. ",
)
_FEWEST, _MOST = 4, 16
_SHORTEST, _LONGEST = 17, 2048
"""Tokens."""


Prompts = tuple[tuple[int, ...], ...]


class PromptBook:
    """Fixed prompts of one model; asked for often, made once for each size of groups."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: dict[tuple[int, int, int], Prompts] = {}

    def prompts(self, *, ranks: int, page_size: int, longest: int) -> Prompts:
        """See `fixed_prompts`."""
        key = ranks, page_size, longest
        if key not in self._made:
            self._made[key] = fixed_prompts(
                self._tokenizer, ranks=ranks, page_size=page_size, longest=longest
            )
        return self._made[key]


def fixed_prompts(tokenizer: Tokenizer, *, ranks: int, page_size: int, longest: int) -> Prompts:
    """One prompt a rank at least, so that each owns one; each a page longer, so that one spans all ranks.

    Args:
        tokenizer: of the model.
        ranks: of the larger group.
        page_size: tokens of a KV page.
        longest: prompt that fits with its answer, tokens; below 2, there are none.
    """
    if longest < 2:
        return ()
    count = min(max(_FEWEST, ranks), _MOST)
    lengths = [min(_SHORTEST + index * page_size, _LONGEST, longest) for index in range(count)]
    return tuple(_prompt(tokenizer, index, length) for index, length in enumerate(lengths))


def _prompt(tokenizer: Tokenizer, index: int, length: int) -> tuple[int, ...]:
    text = _TEXTS[index % len(_TEXTS)]
    head = [token for token in tokenizer.encode("", add_special_tokens=True) if token < tokenizer.vocab_size]
    body = [
        token for token in tokenizer.encode(text, add_special_tokens=False) if token < tokenizer.vocab_size
    ]
    # Of two prompts with one text, the later one begins elsewhere in it.
    shifted = body[index // len(_TEXTS) :] + body[: index // len(_TEXTS)]
    return (*head, *islice(cycle(shifted or [0]), length - len(head)))
