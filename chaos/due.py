"""When each task was due, worked out from what its callers asked for and nothing else.

Only one-offs and fixed steps (a cron expression of every minute is one), so that the arithmetic is
two lines and cannot share a mistake with the scheduler's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from chaos.evidence import Action

__all__ = ["Due", "due_of"]

_SECOND = 1_000_000
_MARGIN = 50_000
"""Microseconds by which this host's and the database's reading of one clock may differ."""


@attrs.define
class Due:
    """The fires of one task: those that must be accounted for, and those that fell into a moment in
    which an edit happened whose exact instant nobody was told."""

    must: set[int] = attrs.Factory(set)
    may: set[int] = attrs.Factory(set)

    @property
    def every(self) -> list[int]:
        return sorted(self.must | self.may)


@attrs.frozen
class _Span:
    """While armed: later than ``after``, at most ``upto``; each is (earliest, latest)."""

    action: Action
    after: tuple[int, int]
    upto: tuple[int, int]

    def add(self, due: Due) -> None:
        """Add the fires of this span."""
        for fire in self._fires(self.after[0], self.upto[1]):
            sure = self.after[1] < fire <= self.upto[0]
            (due.must if sure else due.may).add(fire)

    def _fires(self, after: int, upto: int) -> Sequence[int]:
        action = self.action
        if not action.step_us:
            return [action.once_us] if after < action.once_us <= upto else []
        first = max(1, (after - action.anchor_us) // action.step_us + 1)
        last = (upto - action.anchor_us) // action.step_us
        return [action.anchor_us + n * action.step_us for n in range(first, last + 1)]


def due_of(actions: Sequence[Action], until: float) -> Due:
    """What was due of one task up to ``until``. ``actions`` are its own, in order."""
    due = Due()
    armed: tuple[Action, tuple[int, int]] | None = None
    for action in actions:
        if action.refused or action.what == "run_now":
            continue
        if action.what == "update" and not (action.step_us or action.once_us):
            continue  # the texts changed, not the times
        moment = _moment(action)
        if armed is not None:
            _Span(armed[0], armed[1], moment).add(due)
            armed = None
        if action.what in ("create", "resume", "update"):
            # A new one-off fires even when its time had passed by the time it was stored.
            fresh = action.what != "resume" and not action.step_us
            armed = action, (0, 0) if fresh else moment
    if armed is not None:
        now = int(until * _SECOND)
        _Span(armed[0], armed[1], (now - _MARGIN, now)).add(due)
    due.may -= due.must
    return due


def _moment(action: Action) -> tuple[int, int]:
    if not action.unsure:
        return action.at_us, action.at_us
    return int(action.asked * _SECOND) - _MARGIN, int(action.answered * _SECOND) + _MARGIN
