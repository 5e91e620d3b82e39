"""Even splits of a whole: the one rule by which rows, vocabularies, experts and FFN columns are shared.

Invariant: shares differ by at most one, the larger ones come first, and together they tile the whole.
"""


def balanced_range(total: int, parts: int, part: int) -> tuple[int, int]:
    """The half-open share of part `part` in `range(total)`; the first `total % parts` get one more."""
    share, extra = divmod(total, parts)
    start = part * share + min(part, extra)
    return start, start + share + (part < extra)
