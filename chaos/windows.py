"""Which fault may have kept which answer from being written down."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import attrs

from chaos.evidence import Delivery, Evidence, Fault, Terms

__all__ = ["DATABASE", "NODE", "Windows"]

NODE = frozenset({"kill", "freeze", "pause"})
"""Faults of one process. An orderly stop is none: it may not cost a second delivery."""
DATABASE = frozenset({"db-restart", "db-crash", "db-freeze", "db-kill-connections"})
_STALL = "stall"
_HOLDING = DATABASE | {_STALL, "freeze", "pause"}
_BEFORE = 0.1


@attrs.frozen
class Windows:
    """The faults of a run, in the order of their start, asked about one delivery at a time."""

    faults: Sequence[Fault]
    terms: Terms
    _starts: list[float]
    _longest: float

    @classmethod
    def of(cls, evidence: Evidence) -> Windows:
        faults = sorted(evidence.faults, key=lambda f: f.start)
        longest = max((f.end - f.start for f in faults), default=0.0) + evidence.terms.recovery
        return cls(faults, evidence.terms, [f.start for f in faults], longest)

    def accepted(self, delivery: Delivery) -> bool:
        """Whether the agent surely answered 2xx in time; the node may have lost it all the same."""
        half = self.terms.callback_timeout / 2
        answered = delivery.until is not None and delivery.until - delivery.at < half
        return delivery.answer == "accepted" and answered

    def cause(self, delivery: Delivery) -> str:
        """Which fault of its node may have lost an answer for good; "" when there was none.

        The database alone is no reason: a node keeps what it could not write and writes it later.
        """
        for fault in self._near(delivery.at - _BEFORE, self.written_by(delivery)):
            ours = fault.kind == _STALL or (fault.kind in NODE and fault.node == delivery.node)
            if ours and fault.end >= delivery.at - _BEFORE:
                return fault.kind
        return ""

    def kept_waiting(self, delivery: Delivery) -> str:
        """What may have kept its node from writing until the lease of the call was over."""
        until = self.written_by(delivery)
        lease = self.terms.lease - self.terms.callback_timeout
        if until - delivery.at < lease:
            return ""
        found = [f.kind for f in self._near(delivery.at, until) if self._end(f) >= delivery.at]
        return found[0] if found else ""

    def written_by(self, delivery: Delivery) -> float:
        """When the answer had to be in the database: a moment after it was given, or after what
        held up every writer meanwhile (the database, or a frozen node that holds row locks)."""
        until = (delivery.until or delivery.at) + self.terms.settle
        n = bisect_left(self._starts, delivery.at - self._longest)
        while n < len(self.faults) and self.faults[n].start <= until:
            fault = self.faults[n]
            if fault.kind in _HOLDING and self._end(fault) >= delivery.at:
                until = max(until, self._end(fault) + self.terms.settle)
            n += 1
        return until

    def _near(self, first: float, last: float) -> Iterator[Fault]:
        """The faults that may overlap a span of time."""
        begin = bisect_left(self._starts, first - self._longest)
        yield from self.faults[begin : bisect_right(self._starts, last)]

    def _end(self, fault: Fault) -> float:
        """The end of a fault, and of what the nodes need to get over it."""
        if fault.kind in ("db-restart", "db-crash"):
            return fault.end + self.terms.recovery
        return fault.end + (1.0 if fault.kind in DATABASE or fault.kind == _STALL else 0.0)
