"""Time zones by IANA name, from the ``tzdata`` package, else the system (`X-S2`, `X-S8`)."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from crontask_core.errors import InvalidInput

# zoneinfo and importlib.resources are imported where they are used: a command that touches no
# time zone starts without them.
if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

__all__ = ["parse_zone", "tzdata_version", "zone"]

_NOT_PLACES = frozenset({"Factory", "localtime", "posixrules"})
# What people and models write instead of a name, in lower case.
_MEANT = {
    "beijing": ("Asia/Shanghai",),
    "shenzhen": ("Asia/Shanghai",),
    "guangzhou": ("Asia/Shanghai",),
    "china": ("Asia/Shanghai",),
    "china standard time": ("Asia/Shanghai",),
    "cst": ("Asia/Shanghai", "America/Chicago"),
    "bst": ("Europe/London",),
    "ist": ("Asia/Kolkata",),
    "jst": ("Asia/Tokyo",),
    "kst": ("Asia/Seoul",),
    "edt": ("America/New_York",),
    "cdt": ("America/Chicago",),
    "mdt": ("America/Denver",),
    "pst": ("America/Los_Angeles",),
    "pdt": ("America/Los_Angeles",),
    "cest": ("Europe/Berlin",),
    "eastern standard time": ("America/New_York",),
    "pacific standard time": ("America/Los_Angeles",),
    "mumbai": ("Asia/Kolkata",),
    "delhi": ("Asia/Kolkata",),
    "bangalore": ("Asia/Kolkata",),
    "washington": ("America/New_York",),
    "boston": ("America/New_York",),
    "seattle": ("America/Los_Angeles",),
    "san_francisco": ("America/Los_Angeles",),
    "munich": ("Europe/Berlin",),
    "geneva": ("Europe/Zurich",),
    "z": ("UTC",),
}
_OFFSET = re.compile(r"(?:utc|gmt)?([+-])(\d{1,2})(?::?(\d\d))?", re.ASCII | re.IGNORECASE)
_LIVED_IN = {
    (0, 0): "UTC",
    (1, 0): "Europe/Berlin",
    (5, 30): "Asia/Kolkata",
    (8, 0): "Asia/Shanghai",
    (9, 0): "Asia/Tokyo",
}


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Every zone name by its lower-case spelling."""
    from importlib.resources import files

    try:
        text = files("tzdata").joinpath("zones").read_text(encoding="utf-8")
        names = text.split()
    except (ModuleNotFoundError, OSError):
        from zoneinfo import available_timezones

        names = sorted(available_timezones())
    return {name.lower(): name for name in names if name not in _NOT_PLACES}


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The zone called ``name``. Raises InvalidInput ``UNKNOWN_TIMEZONE`` (`X-S2`, `X-S8`)."""
    from importlib.resources import files
    from zoneinfo import ZoneInfo

    parse_zone(name)
    *folders, last = name.split("/")
    try:
        data = files(".".join(["tzdata.zoneinfo", *folders])).joinpath(last)
        with data.open("rb") as stream:
            return ZoneInfo.from_file(stream, key=name)
    except (ModuleNotFoundError, OSError):
        return ZoneInfo(name)


@lru_cache(maxsize=1)
def tzdata_version() -> str:
    """The zone data in use, such as ``2026f``; ``unknown`` when nothing tells (`X-S8`)."""
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except (ModuleNotFoundError, AttributeError):
        return _system_version()


def _system_version() -> str:
    from zoneinfo import TZPATH

    for folder in TZPATH:
        try:
            with open(f"{folder}/tzdata.zi", encoding="utf-8") as stream:
                first = stream.readline()
        except OSError:
            continue
        if found := re.search(r"version (\S+)", first):
            return found[1]
    return "unknown"


def parse_zone(name: str) -> str:
    """``name`` itself when it is an IANA time zone name in its right spelling (`X-S2`).

    Raises InvalidInput ``UNKNOWN_TIMEZONE`` for the field ``timezone``, with near matches.
    """
    if isinstance(name, str) and _names().get(name.lower()) == name:
        return name
    near = _near(name) if isinstance(name, str) else []
    hint = "give an IANA name, Area/City"
    if near:
        hint = f"did you mean {' or '.join(near[:2])}?"
    if isinstance(name, str) and _OFFSET.fullmatch(name.strip()):
        hint += " An offset is not a zone: it knows no clock changes"
    raise InvalidInput(
        f"{name!r:.60} is not an IANA time zone name",
        code="UNKNOWN_TIMEZONE",
        field="timezone",
        received=name,
        hint=hint,
        example=near[0] if near else "Asia/Shanghai",
        candidates=near,
    )


def _near(name: str) -> list[str]:
    """Names that may have been meant, best first."""
    from difflib import get_close_matches

    names, text = _names(), name.strip().lower().replace(" ", "_")
    if text in names:
        return [names[text]]
    if offset := _OFFSET.fullmatch(text):
        return _by_offset(int(offset[1] + offset[2]), int(offset[3] or 0))
    city = text.rsplit("/", 1)[-1]
    for key in (city, city.replace("_", " ")):
        if key in _MEANT:
            return list(_MEANT[key])
    cities: dict[str, list[str]] = {}
    for lower, proper in names.items():
        cities.setdefault(lower.rsplit("/", 1)[-1], []).append(proper)
    found = list(cities.get(city, ()))
    if len(text) <= 64:
        found += [names[n] for n in get_close_matches(text, names, n=3, cutoff=0.75)]
        for close in get_close_matches(city, cities, n=2, cutoff=0.75):
            found += cities[close]
    return [n for n in dict.fromkeys(found) if n in names.values()][:4]


def _by_offset(hours: int, minutes: int) -> list[str]:
    found = [_LIVED_IN[hours, minutes]] if (hours, minutes) in _LIVED_IN else []
    # The Etc names count westwards: Etc/GMT-8 is eight hours ahead of UTC.
    etc = f"Etc/GMT{-hours:+d}" if hours else "Etc/UTC"
    return found + ([etc] if minutes == 0 and etc.lower() in _names() else [])
