"""Errors as HTTP answers, always in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

import math
from typing import Any

from starlette.responses import JSONResponse

from splash_core.errors import (
    Blocked,
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Outdated,
    Overloaded,
    SplashError,
    Unavailable,
)

_MAX_MESSAGE, _MAX_PARAM = 1000, 200
"""Characters of what an error tells: a message may quote what the client sent, which has no limit."""


OUTDATED, BLOCKED = "outdated", "blocked"
"""Codes of an edit that was made from another version, and of a change that an earlier order stands against:
other conflicts are refusals of what is asked, whoever asks and whenever."""


class Unauthorized(SplashError):
    """The key is missing or wrong."""


class BodyTooLarge(SplashError):
    """The request body exceeds the limit."""


class UnknownUrl(SplashError):
    """No such endpoint, or not with this method."""

    def __init__(self, message: str, *, status: int, headers: dict[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


_STATUS: tuple[tuple[type[SplashError], int, str, str | None], ...] = (
    # kind, HTTP status, type, code; the first that fits counts.
    (NotFound, 404, "invalid_request_error", None),
    (ContextTooLong, 400, "invalid_request_error", None),
    (InvalidRequest, 400, "invalid_request_error", None),
    (Unauthorized, 401, "authentication_error", "invalid_api_key"),
    (BodyTooLarge, 413, "invalid_request_error", "body_too_large"),
    (Outdated, 409, "conflict_error", OUTDATED),
    (Blocked, 409, "conflict_error", BLOCKED),
    (Conflict, 409, "conflict_error", "refused"),
    (Overloaded, 429, "rate_limit_error", "overloaded"),
    (Unavailable, 503, "service_unavailable_error", "unavailable"),
    (DeadlineExceeded, 504, "timeout_error", "deadline_exceeded"),
)


def status_of(error: SplashError) -> int:
    """The HTTP status of an error; what has no place in the table is the server's fault."""
    if isinstance(error, UnknownUrl):
        return error.status
    return next((status for kind, status, _, _ in _STATUS if isinstance(error, kind)), 500)


def error_object(error: SplashError) -> dict[str, Any]:
    """The body of an error answer, also sent inside a stream that has begun."""
    kind, code = "server_error", "internal_error"
    if isinstance(error, UnknownUrl):
        kind = "invalid_request_error"
        code = "method_not_allowed" if error.status == 405 else "unknown_url"
    for known, _, known_kind, known_code in _STATUS:
        if isinstance(error, known):
            kind = known_kind
            code = error.code if isinstance(error, InvalidRequest) else str(known_code)
            break
    param = error.param if isinstance(error, InvalidRequest) else None
    return {
        "error": {
            "message": _shortened(str(error), _MAX_MESSAGE),
            "type": kind,
            "param": None if param is None else _shortened(param, _MAX_PARAM),
            "code": code,
        }
    }


def _shortened(text: str, most: int) -> str:
    """Beginning and end, where the remedy stands."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def error_response(error: SplashError) -> JSONResponse:
    """An error as a whole answer."""
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, UnknownUrl):
        headers |= error.headers
    if isinstance(error, BodyTooLarge):
        headers["connection"] = "close"
    return JSONResponse(error_object(error), status_code=status_of(error), headers=headers)
