"""For which numbers of home rows decode steps are recorded (docs/decisions, 13).

A step is padded to the smallest bucket that holds every rank's home rows, so buckets that double bound what
padding costs: with few rows a step's time is that of reading weights.
"""


def decode_buckets(max_running: int, num_ranks: int) -> tuple[int, ...]:
    """Home rows per rank, ascending: 1, 2, 4 … up to twice an even share of the most sequences.

    Twice, since requests of different owners end at different times. A step with more rows on some rank is
    launched.

    Args:
        max_running: most sequences that decode at once.
        num_ranks: T.
    """
    most = min(max_running, 2 * -(-max_running // num_ranks))
    doubling = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*doubling, most)
