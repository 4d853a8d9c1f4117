"""When another node may be called dead: by watching its counter, never by comparing clocks."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

__all__ = ["NodeWatch"]

_READS = 3


@attrs.define
class _Seen:
    counter: int
    since: float
    reads: int = 1


@attrs.define
class NodeWatch:
    """What this node saw of the others (DESIGN 3.6). Times are this node's own ``elapsed`` seconds.

    A node is dead once its counter stood still in at least 3 good reads over ``timeout``. After a
    gap between two reads longer than ``gap`` (this node froze, or the database was away) the
    watching starts again, so that such a gap retires nobody.
    """

    timeout: float
    gap: float
    _last: float | None = None
    _seen: dict[str, _Seen] = attrs.Factory(dict)
    moved: set[str] = attrs.Factory(set)
    """Those seen moving their counter while this node watched: they live beside it."""

    def read(self, nodes: Sequence[tuple[str, int]], at: float) -> list[tuple[str, int]]:
        """Take one good read of (incarnation, counter) at ``at``; returns the dead ones."""
        if self._last is not None and at - self._last > self.gap:
            self._seen.clear()
        self._last = at
        dead = []
        for name, counter in nodes:
            seen = self._seen.get(name)
            if seen is None or seen.counter != counter:
                if seen is not None:
                    self.moved.add(name)
                self._seen[name] = _Seen(counter, at)
                continue
            seen.reads += 1
            if seen.reads >= _READS and at - seen.since >= self.timeout:
                dead.append((name, counter))
        known = {name for name, _ in nodes}
        for gone in [name for name in self._seen if name not in known]:
            del self._seen[gone]
        self.moved &= known
        return dead
