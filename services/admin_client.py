"""The HTTP client of the admin port, shared by client commands.

Invariant: an error of the admin port becomes the `SplashError` of its status and code, so exit codes mean the
same for local and remote failures.
"""

import json
import sys
from types import TracebackType
from typing import Any

import httpx
from rich.console import Console

from splash_core.config import AdminSettings, admin_key, resolve
from splash_core.errors import (
    Blocked,
    ConfigError,
    Conflict,
    InvalidRequest,
    Outdated,
    SplashError,
    Unavailable,
)

_SWITCH_TIMEOUT_S = 120.0


class AdminClient:
    """Calls one admin port."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._url = url.rstrip("/")
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=_SWITCH_TIMEOUT_S)

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """GET an object."""
        return self._call("GET", path, None)

    def get_list(self, path: str) -> list[dict[str, Any]]:
        """GET a list."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST an object."""
        return self._call("POST", path, body)

    def put_text(self, path: str, text: str, *, query: dict[str, str]) -> dict[str, Any]:
        """PUT a text."""
        headers = {"content-type": "application/toml"}
        return self._call("PUT", path, None, content=text.encode(), params=query, headers=headers)

    def _call(self, method: str, path: str, body: dict[str, Any] | None, **sent: Any) -> Any:
        try:
            response = self._http.request(method, path, json=body, **sent)
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self._url} is no URL ({error}); set --admin or SPLASH_ADMIN") from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"nothing answers at {self._url} ({error}); is `splash up` running? "
                "Set --admin or SPLASH_ADMIN to the admin URL that it printed"
            ) from error
        if not response.is_success:
            raise self._error_of(response)
        try:
            return response.json()
        except ValueError:
            raise self._not_admin() from None

    def _not_admin(self) -> ConfigError:
        return ConfigError(
            f"{self._url} answers, but is no admin port; set --admin or SPLASH_ADMIN to the admin URL that "
            "`splash up` printed, not the gateway's"
        )

    def _error_of(self, response: httpx.Response) -> SplashError:
        try:
            error = response.json()["error"]
            message, code = error["message"], error.get("code")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._not_admin()
        return self._not_admin() if code == "unknown_url" else _meant(response.status_code, code, message)


def _meant(status: int, code: object, message: str) -> SplashError:
    text = f"{message} (HTTP {status})"
    if status == 409:
        return {"outdated": Outdated, "blocked": Blocked}.get(str(code), Conflict)(text)
    if status in (400, 404, 422):
        return InvalidRequest(text)
    if status == 401:
        return InvalidRequest(f"{text}; set SPLASH_ADMIN_KEY or --admin-key-file")
    return Unavailable(text)


def connect(admin: str | None, key_file: str | None) -> AdminClient:
    """A client for the admin port that flags, environment or default name."""
    settings = resolve(AdminSettings, flags={"admin": admin, "admin_key_file": key_file})
    return AdminClient(settings.admin, admin_key(settings))


def emit(value: object, *, as_json: bool, text: str) -> None:
    """Print a result: one line of JSON, or text for people."""
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        # Without soft wrapping a pipe would get lines of 80 characters.
        Console().print(text, highlight=False, markup=False, soft_wrap=True)
