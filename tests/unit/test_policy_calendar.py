"""Calendars hold by the clocks of their zone: over midnight, and over changes to and from summer time."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from splash_core.policy.calendar import read_hours


def _instant(text: str, zone: str = "UTC", *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    ("instant", "holds"),
    [
        ("2026-03-02T07:59:59", False),  # a Monday
        ("2026-03-02T08:00:00", True),
        ("2026-03-02T16:59:59", True),
        ("2026-03-02T17:00:00", False),
        ("2026-03-03T12:00:00", False),
    ],
)
def test_within_a_day(instant: str, holds: bool) -> None:
    hours = read_hours({"days": ["mon"], "from": "08:00", "to": "17:00"}, where="c")
    assert hours.hold(_instant(instant)) is holds


@pytest.mark.parametrize(
    ("instant", "holds"),
    [
        ("2026-03-06T21:59:00", False),  # a Friday
        ("2026-03-06T22:00:00", True),
        ("2026-03-07T00:00:00", True),
        ("2026-03-07T05:59:59", True),
        ("2026-03-07T06:00:00", False),
        ("2026-03-07T23:00:00", False),  # Saturday's own night is not named
        ("2026-03-06T03:00:00", False),  # nor is Thursday's
    ],
)
def test_over_midnight_the_day_is_that_of_the_beginning(instant: str, holds: bool) -> None:
    hours = read_hours({"days": ["fri"], "from": "22:00", "to": "06:00"}, where="c")
    assert hours.hold(_instant(instant)) is holds


@pytest.mark.parametrize(("start", "end"), [("00:00", "24:00"), ("00:00", "00:00")])
def test_whole_days(start: str, end: str) -> None:
    hours = read_hours({"days": ["sun"], "from": start, "to": end}, where="c")
    found = [
        hours.hold(_instant(f"2026-03-{day:02}T{time}")) for day in (7, 8, 9) for time in ("00:00", "23:59")
    ]
    assert found == [False, False, True, True, False, False]


def test_sunday_night_ends_on_monday() -> None:
    hours = read_hours({"days": ["sun"], "from": "22:00", "to": "02:00"}, where="c")
    assert hours.hold(_instant("2026-03-09T01:00:00"))
    assert not hours.hold(_instant("2026-03-08T01:00:00"))


def test_the_zone_is_the_entrys() -> None:
    hours = read_hours({"from": "09:00", "to": "10:00", "time_zone": "Asia/Tokyo"}, where="c")
    assert hours.hold(_instant("2026-03-02T00:30:00"))
    assert not hours.hold(_instant("2026-03-02T09:30:00"))


def test_the_same_clock_in_winter_and_summer() -> None:
    hours = read_hours({"from": "09:00", "to": "10:00", "time_zone": "Europe/Berlin"}, where="c")
    assert [hours.hold(_instant(f"2026-01-15T{hour:02}:30")) for hour in (7, 8, 9)] == [False, True, False]
    assert [hours.hold(_instant(f"2026-07-15T{hour:02}:30")) for hour in (7, 8, 9)] == [True, False, False]


def test_an_hour_that_the_clocks_skip_does_not_hold() -> None:
    # Berlin goes from 02:00 to 03:00 on 29 March 2026, at 01:00 UTC.
    hours = read_hours({"from": "02:00", "to": "03:00", "time_zone": "Europe/Berlin"}, where="c")
    minutes = range(0, 180, 10)
    start = _instant("2026-03-28T23:30:00")
    assert not any(hours.hold(start + 60 * minute) for minute in minutes)
    night = read_hours({"from": "01:00", "to": "04:00", "time_zone": "Europe/Berlin"}, where="c")
    assert sum(night.hold(start + 60 * minute) for minute in range(0, 240, 10)) == 12  # two hours, not three


def test_an_hour_that_the_clocks_show_twice_holds_twice() -> None:
    # Berlin goes from 03:00 back to 02:00 on 25 October 2026, at 01:00 UTC.
    hours = read_hours({"from": "02:00", "to": "03:00", "time_zone": "Europe/Berlin"}, where="c")
    first, second = (_instant("2026-10-25T02:30", "Europe/Berlin", fold=fold) for fold in (0, 1))
    assert second - first == 3600
    assert hours.hold(first)
    assert hours.hold(second)
    assert not hours.hold(second + 3600)


def test_days_are_written_in_the_weeks_order_once() -> None:
    hours = read_hours({"days": ["sun", "mon", "sun"], "from": "00:00", "to": "24:00"}, where="c")
    assert hours.to_plain() == {"days": ["mon", "sun"], "from": "00:00", "to": "24:00", "time_zone": "UTC"}
