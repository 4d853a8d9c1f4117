"""Cron expressions as people and agents write them: prefixes, intervals, and helpful refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from crontask_core.cron import MAX_LENGTH, Rule, Unreadable, read_rule
from crontask_core.errors import InvalidInput
from crontask_core.instants import parse_duration
from crontask_core.kinds import Cron, Every
from crontask_core.wall import has_a_day
from crontask_core.zones import parse_zone

__all__ = ["parse_cron", "parse_fields"]

_EXAMPLE = "0 9 * * 1-5"
_BLANKS = " \t\r\n"
_PREFIX = re.compile(r"CRON_TZ=(?P<zone>\S*)(?: (?P<rest>.*))?")
_LIKE_A_PREFIX = re.compile(r"[A-Za-z_]*TZ=(?P<zone>\S*)(?: (?P<rest>.*))?", re.IGNORECASE)


@lru_cache(maxsize=16_384)
def parse_fields(expr: str) -> Rule:
    """The parsed form of a normalised expression; cached, immutable and shared (`X-S4`).

    Raises InvalidInput ``INVALID_CRON``. Whether it ever fires is not looked at here.
    """
    try:
        return read_rule(expr)
    except Unreadable as error:
        raise _bad(error.message, error.hint, expr, error.tries, error.near) from None


def parse_cron(expr: str, zone: str | None, default_zone: str, anchor: datetime) -> Cron | Every:
    """A cron expression as a schedule; ``@every`` gives an ``Every`` anchored at ``anchor``.

    The zone is the ``CRON_TZ=`` prefix, else ``zone``, else ``default_zone``; a prefix and another
    ``zone`` together are refused. Raises InvalidInput: ``INVALID_CRON``, ``NEVER_FIRES`` or
    ``UNKNOWN_TIMEZONE``, each with an example that is itself accepted (`X-S1`, `X-S2`).
    """
    text, named = _take_prefix(_clean(expr), zone)
    where = parse_zone(named or zone or default_zone)
    if text.lower().startswith("@every"):
        return Every(_interval(text), anchor)
    rule = parse_fields(text)
    if not has_a_day(rule):
        raise _never(text, rule)
    return Cron(text.lower() if text.startswith("@") else text, where)


def _clean(expr: str) -> str:
    """Printable ASCII, one blank between fields, none outside, not too long."""
    if not isinstance(expr, str):
        raise _bad("a cron expression is a text", "", repr(expr))
    text = expr.strip(_BLANKS)
    if len(text) > MAX_LENGTH:
        hint = "use ranges and steps such as 0-30/2 in place of long lists"
        raise _bad(
            f"{len(text)} characters; a cron expression has at most {MAX_LENGTH}", hint, text
        )
    for place, char in enumerate(text, start=1):
        if char != "\t" and not " " <= char <= "~":
            raise _bad(
                f"character {place} is {char!a}; only plain ASCII can be read",
                "type digits, blanks and punctuation in their plain half-width form",
                ascii(text)[1:-1],
            )
    return " ".join(text.split())


def _take_prefix(text: str, given: str | None) -> tuple[str, str | None]:
    """The text without its zone prefix, and the zone of the prefix."""
    match = _PREFIX.fullmatch(text)
    if match is None:
        if wrong := _LIKE_A_PREFIX.fullmatch(text):
            raise _bad(
                f"{text.split('=', maxsplit=1)[0]}= is not a prefix of ours",
                "write CRON_TZ=Area/City before the five fields, or give timezone",
                text,
                [_prefixed(wrong["zone"], wrong["rest"])],
            )
        return text, None
    named, rest = match["zone"], match["rest"]
    try:
        parse_zone(named)
    except InvalidInput as error:
        near = error.candidates
        tries = [_prefixed(near[0] if near else "", rest)]
        raise _bad(error.message, error.hint, text, tries, near, code=error.code) from None
    if not rest:
        raise _bad("a zone prefix with no fields after it", "", text, [_prefixed(named, "")])
    if given is not None and given != named:
        raise InvalidInput(
            f"the prefix says {named}, timezone says {given}",
            code="INVALID_CRON",
            field="timezone",
            received=given,
            hint="give the zone once, in either place",
            example=named,
        )
    return rest, named


def _prefixed(zone: str, rest: str | None) -> str:
    """A prefixed expression that is accepted, as near to what was given as can be."""
    try:
        parse_zone(zone)
    except InvalidInput:
        zone = "Asia/Shanghai"
    return f"CRON_TZ={zone} {rest if rest and _fires(rest) else _EXAMPLE}"


def _fires(text: str) -> bool:
    """Whether ``parse_cron`` would take this text: what an example must pass."""
    match = _PREFIX.fullmatch(text)
    if len(text) > MAX_LENGTH:
        return False
    try:
        return has_a_day(read_rule(match["rest"] or "" if match else text))
    except Unreadable:
        return False


def _bad(
    message: str,
    hint: str,
    received: str,
    tries: Sequence[str] = (),
    near: Sequence[str] = (),
    *,
    code: str = "INVALID_CRON",
    otherwise: str = _EXAMPLE,
) -> InvalidInput:
    """An error for ``cron_expr``; the example is the first of ``tries`` that is itself accepted."""
    return InvalidInput(
        message,
        code=code,
        field="cron_expr",
        received=received,
        hint=hint or "write five fields: minute hour day-of-month month day-of-week",
        example=next((text for text in tries if _fires(text)), otherwise),
        candidates=near,
    )


def _interval(text: str) -> timedelta:
    words = text.split(" ")
    wrong = "@every takes one duration"
    if len(words) == 2 and words[0].lower() == "@every":
        try:
            interval = parse_duration(words[1])
        except InvalidInput as error:
            wrong = error.message
        else:
            if interval > timedelta(0) and not interval % timedelta(milliseconds=1):
                return interval
            wrong = "an interval is a whole number of milliseconds, more than 0"
    hint = "write @every and a duration; units are d, h, m, s and ms"
    raise _bad(wrong, hint, text, otherwise="@every 90m")


def _never(text: str, rule: Rule) -> InvalidInput:
    minute, hour, day, month, weekday = rule.texts
    return InvalidInput(
        f"no date is day-of-month {day} in month {month}"
        + (f" and day-of-week {weekday}" if rule.days.both and weekday not in "*?" else ""),
        code="NEVER_FIRES",
        field="cron_expr",
        received=text,
        hint="L in the day-of-month field is the last day of each month",
        example=f"{minute} {hour} L {month} *",
    )
