"""What a command's exit code means: the one table of them, which docs/exit-codes.md explains.

Invariant: a failure has the same code wherever it is found: in the command, in a service that it starts, or
behind the admin port.
"""

from enum import IntEnum

from splash_core.errors import (
    Blocked,
    ConfigError,
    Conflict,
    Infeasible,
    InvalidRequest,
    Outdated,
    SplashError,
)


class Exit(IntEnum):
    """How a command has ended."""

    DONE = 0
    """What was asked is done; a check has found nothing."""
    FAILED = 1
    """It could not be done as things are, or a check has found something."""
    USAGE = 2
    """Asked wrongly: the same words will never do."""
    INFEASIBLE = 3
    """There is no room or no such layout; the message has the numbers, and the nearest that fits."""


_CODES: tuple[tuple[type[SplashError], Exit], ...] = (
    # The first that fits counts; what is not here has failed.
    (Infeasible, Exit.INFEASIBLE),
    (Blocked, Exit.FAILED),
    (Outdated, Exit.FAILED),
    (Conflict, Exit.INFEASIBLE),
    (ConfigError, Exit.USAGE),
    (InvalidRequest, Exit.USAGE),
)


def exit_code(error: SplashError) -> Exit:
    """The process exit code that an error stands for."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)
