"""Names of writers: each handoff of a writing group is one of its own.

Invariant: no two handoffs share a name, so what a message says of one never counts for another.
"""


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
