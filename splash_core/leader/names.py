"""Layouts and modes by the names that orders over the wire give them."""

from splash_core.errors import InvalidRequest
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode


def parse_layout(name: str) -> Layout:
    """A layout by name; raises `InvalidRequest` with the known ones."""
    try:
        return Layout(name.upper())
    except ValueError:
        known = ", ".join(Layout)
        raise InvalidRequest(f"layout {name!r} is not one of {known}", param="layout") from None


def parse_mode(name: str) -> SwitchMode:
    """A switch mode by name (empty: the default); raises `InvalidRequest` with the known ones."""
    try:
        return SwitchMode(name or SwitchMode.OVERLAPPED)
    except ValueError:
        known = ", ".join(SwitchMode)
        raise InvalidRequest(f"mode {name!r} is not one of {known}", param="mode") from None
