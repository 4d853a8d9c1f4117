"""Which destinations are slow, so that they do not delay the others (X-F1, DESIGN 3.2)."""

from __future__ import annotations

import attrs

__all__ = ["HostBook"]

_SLOW = 1.0
_WEIGHT = 0.2
_KEPT = 1_000


@attrs.define
class _Host:
    flying: int = 0
    average: float | None = None


@attrs.define
class HostBook:
    """Running averages of this node's calls per host, in seconds; a failure counts as slow.

    A host that is slow, or of which nothing is known yet, is capped at half the slots while others
    wait, and always leaves a tenth of them free; a healthy one may take all.
    """

    slots: int
    _hosts: dict[str, _Host] = attrs.Factory(dict)

    def started(self, host: str) -> None:
        """A call to ``host`` has been begun."""
        self._hosts.setdefault(host, _Host()).flying += 1

    def ended(self, host: str, seconds: float | None) -> None:
        """It ended after ``seconds``; None: it never went out and says nothing of the host."""
        entry = self._hosts.setdefault(host, _Host())
        entry.flying = max(0, entry.flying - 1)
        if seconds is not None:
            old = entry.average
            entry.average = seconds if old is None else old + _WEIGHT * (seconds - old)
        if len(self._hosts) > _KEPT:
            self._forget()

    def capped(self, *, others_wait: bool) -> frozenset[str]:
        """Hosts that may not be begun now: they hold their share of the slots."""
        limit = self._share(others_wait=others_wait)
        return frozenset(name for name, host in self._suspects() if host.flying >= limit)

    def room(self, *, others_wait: bool) -> int:
        """How many fires one pass may take, so that no host that is slow, or of which nothing is
        known yet, gets more than its share in a single batch."""
        limit = self._share(others_wait=others_wait)
        left = [limit - host.flying for _, host in self._suspects() if host.flying < limit]
        if not left and self._hosts:
            return 2 * self.slots
        return min([max(1, self.slots // 2), *left])

    def _share(self, *, others_wait: bool) -> int:
        if others_wait:
            return max(1, self.slots // 2)
        return max(1, self.slots - max(1, self.slots // 10))

    def _suspects(self) -> list[tuple[str, _Host]]:
        return [
            (name, host)
            for name, host in self._hosts.items()
            if host.average is None or host.average > _SLOW
        ]

    def typical(self) -> float | None:
        """The average call over all hosts, in seconds; None before the first answer."""
        known = [h.average for h in self._hosts.values() if h.average is not None]
        return sum(known) / len(known) if known else None

    def _forget(self) -> None:
        self._hosts = {n: h for n, h in self._hosts.items() if h.flying}
