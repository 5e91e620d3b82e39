"""Names of writers: each handoff of a writing group is one of its own.

Invariant: no two handoffs share a name, so what a message says of one never counts for another.
"""

from collections.abc import Collection, Iterable


def handoff_writer(group: str, handoff: int) -> str:
    """The writer that a handoff is.

    Args:
        group: incarnation of the writing group.
        handoff: its number there.
    """
    return f"{group}/{handoff}"


def group_of(writer: str) -> str:
    """The incarnation of a writer's group; empty if the writer is no handoff."""
    return writer.rpartition("/")[0]


def handoffs_over(
    names: Iterable[str], group: str, *, still: Collection[int], newest: int
) -> tuple[str, ...]:
    """Of these writers the handoffs of a group that are over, by a list of those that are not.

    Args:
        names: of writers.
        group: incarnation of the writing group.
        still: handoffs that may write.
        newest: the newest handoff that the list can tell of.
    """
    open_names = {handoff_writer(group, number) for number in still}
    return tuple(
        name
        for name in names
        if group_of(name) == group and name not in open_names and int(name.rpartition("/")[2]) <= newest
    )
