"""For which numbers of home rows decode steps are recorded (docs/decisions, 13 and 26).

A step is padded to the smallest bucket that holds every rank's home rows, so buckets that double bound what
padding costs: with few rows a step's time is that of reading weights.
"""

_MOST_ROWS = 1024
"""Over all ranks, of a bucket beyond twice an even share: a recorded step's memory grows with its rows."""


def decode_buckets(max_running: int, num_ranks: int) -> tuple[int, ...]:
    """Home rows per rank, ascending: 1, 2, 4 … up to the most that one rank may have at home.

    That is every sequence: those of one owner may outlive the others, and where pages are striped, a row is
    at home where its page is. Only where sequences are very many, a step with more rows on some rank is
    launched: with more than twice an even share, and more than 1,024 rows once all ranks are padded to it.

    Args:
        max_running: most sequences that decode at once.
        num_ranks: T.
    """
    even = -(-max_running // num_ranks)
    most = min(max_running, max(2 * even, _MOST_ROWS // num_ranks))
    doubling = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*doubling, most)
