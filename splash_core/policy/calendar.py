"""When an entry of a policy's calendar holds: days and hours on the clocks of a time zone.

A pure function of an instant that is passed in. Invariant: what counts is what a clock on the wall there
shows. An hour that the clocks skip does not hold, one that they show twice holds twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, cast
from zoneinfo import ZoneInfo

from splash_core.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
HOUR_KEYS = ("days", "from", "to", "time_zone")
_MINUTES = 24 * 60
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """From a time of certain days to a time of the same day, or of the next where it is not later."""

    days: tuple[int, ...]
    """Days on which it begins, 0 is Monday."""
    start: int
    """Minutes after midnight, the first that holds."""
    end: int
    """Minutes after midnight, the first that does not; not above `start`: on the next day."""
    zone: str

    def hold(self, instant_s: float) -> bool:
        """Whether they hold at an instant, in seconds since the epoch."""
        there = datetime.fromtimestamp(instant_s, time_zone(self.zone))
        minute, day = there.hour * 60 + there.minute, there.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        began_today = day in self.days and minute >= self.start
        return began_today or ((day - 1) % 7 in self.days and minute < self.end)

    def to_plain(self) -> dict[str, Any]:
        """As a document writes it."""
        return {
            "days": [DAYS[day] for day in self.days],
            "from": _clock(self.start),
            "to": _clock(self.end),
            "time_zone": self.zone,
        }


def read_hours(entry: Mapping[str, Any], *, where: str) -> Hours:
    """The hours of a calendar entry; `from` and `to` are required, days default to all, the zone to UTC.

    Raises:
        ConfigError: names the key and what is allowed.
    """
    for name in ("from", "to"):
        if name not in entry:
            raise ConfigError(f'{where}.{name}: missing; give a time such as "22:00"')
    zone = entry.get("time_zone", "UTC")
    if not isinstance(zone, str):
        raise ConfigError(f'{where}.time_zone: a name such as "Europe/Berlin" is required, got {zone!r}')
    try:
        time_zone(zone)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"{where}.time_zone: {zone!r} is not in this host's time zone database; name one such as UTC or "
            "Europe/Berlin (where the host has none, install its package tzdata)"
        ) from None
    return Hours(
        days=_days(entry.get("days", list(DAYS)), where=f"{where}.days"),
        start=_minutes(entry["from"], most=_MINUTES - 1, where=f"{where}.from"),
        end=_minutes(entry["to"], most=_MINUTES, where=f"{where}.to"),
        zone=zone,
    )


def time_zone(name: str) -> tzinfo:
    """A zone by its name in the IANA database; UTC needs no database."""
    return UTC if name == "UTC" else ZoneInfo(name)


def _days(value: object, *, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: a list of days is required, of {', '.join(DAYS)}; got {value!r}")
    names = cast("list[object]", value)
    for name in names:
        if name not in DAYS:
            raise ConfigError(f"{where}: {name!r} is not a day; known: {', '.join(DAYS)}")
    return tuple(index for index, day in enumerate(DAYS) if day in names)


def _minutes(value: object, *, most: int, where: str) -> int:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    minutes = int(found[1]) * 60 + int(found[2]) if found is not None and int(found[2]) < 60 else most + 1
    if minutes > most:
        raise ConfigError(f'{where}: a time from "00:00" to "{_clock(most)}" is required, got {value!r}')
    return minutes


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
