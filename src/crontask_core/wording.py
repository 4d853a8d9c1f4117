"""A schedule in plain English, and what its author may not have meant.

Every sentence is built from the parsed values, so it cannot promise another time than the one that
fires. Where no neat phrase is exact the values are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from crontask_core.cron import DayField, Rule
from crontask_core.expressions import parse_fields
from crontask_core.kinds import Cron, Every, Once, Schedule
from crontask_core.recurrence import next_after
from crontask_core.zones import zone as load_zone

__all__ = ["explain", "schedule_warnings"]

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEK = (1, 2, 3, 4, 5, 6, 0)
_NTH = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
_FEW_TIMES = 8
_UNITS = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
)
_YEAR = timedelta(days=366)


def explain(schedule: Schedule, zone: str) -> str:
    """The schedule as one phrase, such as ``at 09:00 on Monday to Friday (Asia/Shanghai)``.

    A one-off and an interval are shown in ``zone``; a cron schedule always in its own (`X-S7`).
    """
    if isinstance(schedule, Once):
        return f"once, at {_moment(schedule.at, zone)}"
    if isinstance(schedule, Every):
        return f"every {_span(schedule.interval)}, counted from {_moment(schedule.anchor, zone)}"
    rule = parse_fields(schedule.expr)
    parts = [_times(rule), _dates(rule)]
    return f"{' '.join(part for part in parts if part)} ({schedule.zone})"


def _moment(at: datetime, zone: str) -> str:
    return f"{at.astimezone(load_zone(zone)).isoformat(sep=' ')} ({zone})"


def _span(interval: timedelta) -> str:
    """An interval in words: in the largest unit that divides it, else in several."""
    for name, size in _UNITS[:3]:
        if interval % size == timedelta(0) and (name != "day" or interval > size):
            return _counted(interval // size, name)
    parts = []
    for name, size in _UNITS[1:]:
        count, interval = divmod(interval, size)
        parts += [_counted(count, name)] if count else []
    if interval:
        parts.append(f"{interval / timedelta(milliseconds=1):g} milliseconds")
    return " ".join(parts)


def _counted(count: int, name: str) -> str:
    return f"1 {name}" if count == 1 else f"{count} {name}s"


# --- times of day -----------------------------------------------------------------------------


def _times(rule: Rule) -> str:
    minutes, hours = rule.minutes, rule.hours
    all_day = len(hours) == 24
    one_by_one = f"at {_listed(f'{h:02}:{m:02}' for h in hours for m in minutes)}"
    if len(minutes) * len(hours) <= 3:
        return one_by_one
    step = _even_step(minutes, 60)
    if step:
        rhythm = "every minute" if step == 1 else f"every {step} minutes"
        if all_day:
            return rhythm
        if _adjoining(hours):
            return f"{rhythm} from {hours[0]:02}:00 to {hours[-1]:02}:{minutes[-1]:02}"
        return f"{rhythm} of {_numbered('hour', hours)}"
    hour_step = _even_step(hours, 24)
    if len(minutes) == 1 and hour_step and len(hours) > 1:
        rhythm = "every hour" if hour_step == 1 else f"every {hour_step} hours"
        if hour_step == 1:
            return f"{rhythm} at minute {minutes[0]}"
        return f"{rhythm} from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[0]:02}"
    if len(minutes) * len(hours) <= _FEW_TIMES:
        return one_by_one
    past = f"at {_numbered('minute', minutes)}"
    return f"{past} of every hour" if all_day else f"{past} of {_numbered('hour', hours)}"


def _even_step(values: Sequence[int], size: int) -> int:
    """The step when ``values`` are every n-th from 0 with no uneven gap at the end, else 0."""
    if len(values) < 2 or values[0] != 0:
        return 0
    step = values[1]
    return step if size % step == 0 and list(values) == list(range(0, size, step)) else 0


def _adjoining(values: Sequence[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


# --- dates ------------------------------------------------------------------------------------


def _dates(rule: Rule) -> str:
    days = rule.days
    numbers, weekdays = _by_number(days.by_number), _by_weekday(days.by_weekday)
    months = "" if len(rule.months) == 12 else _month_names(rule.months)
    if days.every:
        parts = ["every day"] * (len(rule.hours) < 24) + [f"in {months}"] * bool(months)
        return " ".join(parts)
    place = months or "the month"
    if days.both and not days.by_number.whole and not days.by_weekday.whole:
        return f"on {weekdays}, only when that is {_by_number(days.by_number, 'or')} of {place}"
    if days.by_number.whole and days.both:
        return f"on {weekdays}" + (f" in {months}" if months else "")
    if days.by_weekday.whole and days.both:
        return f"on {numbers} of {place}"
    return f"on {numbers} of {place}, and also on {weekdays}" + (f" in {months}" if months else "")


def _by_number(field: DayField, joint: str = "and") -> str:
    parts = []
    if field.values:
        parts.append(_numbered("day", field.values, joint))
    for special in field.specials:
        if special == "L":
            parts.append("the last day")
        elif special == "LW":
            parts.append("the last weekday (Monday to Friday)")
        else:
            parts.append(f"the weekday (Monday to Friday) nearest to day {special[:-1]}")
    return _listed(parts, joint)


def _by_weekday(field: DayField) -> str:
    parts = []
    if field.values:
        ordered = [day for day in _WEEK if day in field.values]
        first, last = _WEEK.index(ordered[0]), _WEEK.index(ordered[-1])
        if len(ordered) > 2 and last - first == len(ordered) - 1:
            parts.append(f"{_DAYS[ordered[0]]} to {_DAYS[ordered[-1]]}")
        else:
            parts += [_DAYS[day] for day in ordered]
    for special in field.specials:
        day, nth = int(special[0]), special[2:]
        parts.append(f"the {_NTH[nth] if nth else 'last'} {_DAYS[day]} of the month")
    return _listed(parts)


def _month_names(months: Sequence[int]) -> str:
    if len(months) > 2 and _adjoining(months):
        return f"{_MONTHS[months[0] - 1]} to {_MONTHS[months[-1] - 1]}"
    return _listed(_MONTHS[month - 1] for month in months)


def _listed(items: Iterable[str], joint: str = "and") -> str:
    *most, last = items
    return f"{', '.join(most)} {joint} {last}" if most else last


def _numbered(name: str, values: Sequence[int], joint: str = "and") -> str:
    """Numbers under their name, runs of three and more drawn together: days 1-5, 8 and 20."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(value) for value in run]
    return f"{name}{'s' * (len(values) > 1 and joint == 'and')} {_listed(texts, joint)}"


# --- warnings ---------------------------------------------------------------------------------


def schedule_warnings(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    """What the author of this schedule may not have meant, one sentence each (`X-S7`)."""
    notes: list[str] = []
    if isinstance(schedule, Cron):
        rule = parse_fields(schedule.expr)
        notes += [*_every_minute(rule), *_steps(rule), *_two_day_fields(rule), *_short_months(rule)]
    first = next_after(schedule, now)
    if first is not None and first - now > _YEAR:
        what = "It fires" if isinstance(schedule, Once) else "The next fire is"
        where = load_zone(schedule.zone) if isinstance(schedule, Cron) else UTC
        notes.append(f"{what} more than a year from now, on {first.astimezone(where):%Y-%m-%d}.")
    return tuple(notes)


def _every_minute(rule: Rule) -> list[str]:
    if len(rule.minutes) < 60 or len(rule.hours) == 24:
        return []
    fires = 60 * len(rule.hours)
    once = " ".join(("0", *rule.texts[1:]))
    return [
        f"This fires every minute of the hours given, {fires} times a day. "
        f"For the full hour only, write {once}."
    ]


def _steps(rule: Rule) -> list[str]:
    """Steps that do not mean "every n" because they start again with each hour, day or year."""
    notes = []
    for index, name, size, unit in ((0, "minute", 60, "hour"), (1, "hour", 24, "day")):
        start, slash, text = rule.texts[index].partition("/")
        if start not in ("*", "0") or not slash or not text.isdigit():
            continue
        step = int(text)
        seconds = step * (60 if index == 0 else 3600)
        if step >= size:
            notes.append(
                f"{start}/{text} is not every {step} {name}s: it fires at {name} 0 of each {unit} "
                f"and no other. For every {step} {name}s give interval_seconds {seconds}."
            )
        elif size % step:
            last = (size - 1) // step * step
            notes.append(
                f"{start}/{text} starts again at {name} 0 of each {unit}: the gap after {name} "
                f"{last} is {size - last} {name}s. For an even rhythm give interval_seconds "
                f"{seconds}."
            )
    start, _, text = rule.texts[2].partition("/")
    if start in ("*", "1") and text.isdigit() and int(text) > 1:
        notes.append(f"{start}/{text} in day-of-month starts again on day 1 of each month.")
    return notes


def _two_day_fields(rule: Rule) -> list[str]:
    day, weekday = rule.texts[2], rule.texts[4]
    if rule.days.by_number.whole and rule.days.both:
        return []
    if rule.days.by_weekday.whole and rule.days.both:
        return []
    if rule.days.both:
        return [
            f"A day field begins with *, so a day must satisfy both: day-of-month {day} and "
            f"day-of-week {weekday}."
        ]
    return [
        f"Both day fields are given, so a day need satisfy only one of them: day-of-month {day} "
        f"or day-of-week {weekday}."
    ]


def _short_months(rule: Rule) -> list[str]:
    """Months in which a fixed day does not exist, when nothing else would fire there."""
    field = rule.days.by_number
    numbers = [*field.values, *(int(s[:-1]) for s in field.specials if s[:-1].isdigit())]
    if not rule.days.by_weekday.whole or rule.days.every or "L" in "".join(field.specials):
        return []
    lengths = {2: 29} | dict.fromkeys((4, 6, 9, 11), 30)
    skipped = [m for m in rule.months if min(numbers) > lengths.get(m, 31)]
    notes = []
    if skipped:
        notes.append(
            f"There is no day {min(numbers)} in {_month_names(skipped)}: nothing fires then. For "
            "the last day of the month write L."
        )
    if min(numbers) == 29 and 2 in rule.months:
        notes.append("29 February comes in leap years only.")
    return notes
