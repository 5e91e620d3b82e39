"""Random edits of a policy document, valid and not, from a seeded generator."""

import random
from collections.abc import Callable
from typing import Any

from splash_core.policy.calendar import DAYS
from splash_core.policy.toml import to_toml

Table = dict[str, Any]
LAYOUTS = ("TP", "CP", "DP", "DOP")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")

_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "allowed": lambda draw: draw.sample(LAYOUTS, draw.randint(1, 4)),
    "margin": lambda draw: round(draw.uniform(0, 9), 3),
    "dwell_s": lambda draw: draw.choice([0, 5, 0.5, 1e9]),
    "interval_s": lambda draw: draw.choice([0.01, 0.25, 2]),
    "confirm": lambda draw: draw.randint(1, 9),
    "horizon_steps": lambda draw: draw.randint(1, 5000),
    "exposed_ms_per_minute": lambda draw: round(draw.uniform(0, 5000), 1),
    "itl_bound_ms": lambda draw: draw.choice(["none", 20, 55.5]),
    "hold_s": lambda draw: draw.randint(0, 100),
    "max_age_s": lambda draw: draw.choice([0.1, 10]),
    "shadow": lambda draw: draw.random() < 0.5,
    "enabled": lambda draw: draw.random() < 0.8,
    "pin": lambda draw: draw.choice(["none", *LAYOUTS]),
}


def _values(draw: random.Random, *, least: int = 0) -> Table:
    names = draw.sample(sorted(_VALUES), draw.randint(least, 4))
    return {name: _VALUES[name](draw) for name in names}


def _time(draw: random.Random) -> str:
    return f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}"


def _entry(draw: random.Random) -> Table:
    hours: Table = {"from": _time(draw), "to": draw.choice([_time(draw), "24:00"])}
    if draw.random() < 0.7:
        hours["days"] = draw.sample(DAYS, draw.randint(1, 7))
    if draw.random() < 0.7:
        hours["time_zone"] = draw.choice(ZONES)
    return hours | _values(draw, least=1)


def _section(draw: random.Random) -> Table:
    section = _values(draw)
    if draw.random() < 0.3:
        section["calendar"] = [_entry(draw) for _ in range(draw.randint(1, 3))]
    return section


def valid_table(draw: random.Random, *, groups: tuple[str, ...] = ("decode-0", "odd name.")) -> Table:
    """A document that every group can follow."""
    table = {name: _section(draw) for name in draw.sample(["all", "prefill", "decode"], draw.randint(0, 3))}
    if draw.random() < 0.4:
        table["group"] = {name: _section(draw) for name in draw.sample(groups, draw.randint(1, len(groups)))}
    return table


def valid_canary(draw: random.Random, *, group: str) -> Table:
    """A `[canary]` section."""
    optional: Table = {
        "period_s": draw.choice([0.1, 60]),
        "metric": "step_ms",
        "tolerance": 0.1,
        "min_steps": 3,
    }
    kept = {name: optional[name] for name in draw.sample(sorted(optional), draw.randint(0, 4))}
    return {"group": group, **kept, "try": _values(draw, least=1)}


_WRONG: tuple[Table, ...] = (
    {"decode": {"margin": -1}},
    {"decode": {"margn": 0.1}},
    {"decodes": {"margin": 0.1}},
    {"all": {"confirm": 0}},
    {"all": {"confirm": 1.5}},
    {"all": {"shadow": "yes"}},
    {"prefill": {"allowed": []}},
    {"prefill": {"allowed": ["PP"]}},
    {"prefill": {"pin": "XP"}},
    {"all": {"dwell_s": float("inf")}},
    {"all": {"max_age_s": float("nan")}},
    {"decode": {"calendar": [{"from": "25:00", "to": "26:00", "margin": 1}]}},
    {"decode": {"calendar": [{"from": "08:00", "to": "09:00"}]}},
    {"decode": {"calendar": [{"from": "08:00", "to": "09:00", "margin": 1, "time_zone": "Nowhere"}]}},
    {"group": {"decode-0": {"pin": 3}}},
    {"canary": {"group": "decode-0"}},
    {"canary": {"group": "decode-0", "try": {"margin": 99}}},
)
"""Each is wrong in one place."""


def invalid_text(draw: random.Random) -> str:
    """A document with something wrong in it: a section, a value, or its text is cut."""
    table = valid_table(draw)
    kind = draw.randrange(4)
    if kind == 0:
        return to_toml(table) + "\n[all\nmargin = 0.1"
    if kind == 1:
        return to_toml(table | {"all": {"margin": 0.25}})[: -draw.randint(1, 3)] + " = ="
    wrong = draw.choice(_WRONG)
    return to_toml(table | wrong)
