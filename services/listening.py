"""Addresses that this host listens on: found, checked and opened, with errors that name the flag.

Invariant: an address that cannot be listened on is the operator's error, in words, never a traceback.
"""

import os
import socket

from splash_core.errors import ConfigError

_BACKLOG = 1024


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """A socket that accepts connections; `flag` is what set the port.

    Raises:
        ConfigError: the address is taken, not this host's, or no address.
    """
    try:
        return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, flag, error) from error


def check_free(host: str, port: int, *, flag: str) -> None:
    """Return if the address can be listened on now; errors as in `listen`."""
    listen(host, port, flag=flag).close()


def free_port(host: str = "127.0.0.1", *, flag: str = "--port", taken: int = 0) -> int:
    """A port that nobody listens on now, other than `taken`; errors as in `listen`."""
    while True:
        with listen(host, 0, flag=flag) as probe:
            port = int(probe.getsockname()[1])
        if port != taken:
            return port


def url_of(host: str, port: int) -> str:
    """Base URL of an HTTP server there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _refused(host: str, port: int, flag: str, error: Exception) -> ConfigError:
    # The system's own words; Python adds the address once more. Failed look-ups have numbers below zero.
    number = getattr(error, "errno", None) or 0
    cause = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
    remedy = f"choose another {flag}, or 0 for a free one, or another host" if port else "choose another host"
    return ConfigError(f"{flag} {port}: cannot listen on {host}:{port} ({cause}); {remedy}")
