"""The error tree: each class says who must act.

SplashError
├── InvalidRequest      the user: a field has a bad value (HTTP 400)
│   ├── ContextTooLong  the user: prompt or output does not fit the context (HTTP 400)
│   └── NotFound        the user: no such model, group or request (HTTP 404)
├── Overloaded          retry later: the queue or the pool is full (HTTP 429)
├── Unavailable         retry elsewhere: a worker is down, draining or not paired (HTTP 503)
│   └── GroupFailed     the group ended as a unit: a rank died or missed its deadline
├── DeadlineExceeded    retry or ask for less: the request's time is up (HTTP 504)
├── Conflict            the operator: the change is refused, with the numbers (HTTP 409)
│   ├── Blocked         the operator: an order given before stands in the way; take that back, or wait
│   └── Outdated        the operator: it was made from another version; take the present one and repeat it
├── Infeasible          the operator: no setting satisfies the demand; says the nearest that does
├── ConfigError         the operator: a setting, a file or a checkpoint is wrong
└── InvariantBroken     a bug: please report it
"""


class SplashError(Exception):
    """Root of all errors that Splash raises on purpose."""


class InvalidRequest(SplashError):
    """A request field has an invalid or unsupported value.

    Args:
        message: names the value and the remedy.
        param: the field at fault, in the client's spelling.
        code: a machine-readable code, OpenAI style.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextTooLong(InvalidRequest):
    """The prompt (plus requested output) exceeds what the deployment can hold."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class NotFound(InvalidRequest):
    """The named model, group or request does not exist."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "not_found") -> None:
        super().__init__(message, param=param, code=code)


class Overloaded(SplashError):
    """No room now; `retry_after_s` says when trying again makes sense."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(SplashError):
    """The worker cannot serve now; another one, or a later try, may."""


class GroupFailed(Unavailable):
    """A worker group ended as a unit; the message names the rank and the cause."""


class DeadlineExceeded(SplashError):
    """A deadline passed before the work was done."""


class Conflict(SplashError):
    """A valid operation is refused in the present state; the message carries the numbers."""


class Blocked(Conflict):
    """What is asked would do, but for an order that was given before; the message names it."""


class Outdated(Conflict):
    """A change was made from a version that is not the present one; the message says how to get that."""


class Infeasible(SplashError):
    """The demand cannot be met; `nearest` states the closest setting that can."""

    def __init__(self, message: str, *, nearest: str | None = None) -> None:
        super().__init__(message if nearest is None else f"{message}; nearest feasible: {nearest}")
        self.nearest = nearest


class ConfigError(SplashError):
    """A setting, a file or a checkpoint is wrong; the message names it and the remedy."""


class InvariantBroken(SplashError):
    """Something has happened that an invariant excludes: a bug in Splash."""
