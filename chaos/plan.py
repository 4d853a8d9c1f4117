"""What a run does, all of it from the options and the seed."""

from __future__ import annotations

import attrs

from chaos.evidence import Terms

__all__ = ["Plan"]


@attrs.frozen(kw_only=True)
class Plan:
    """``rate`` is fires a second, over all tasks: 60 % of repeating tasks, 20 % of one-offs, and
    20 % of one-offs that are all due at one instant, every ``burst_every`` seconds; ``burst`` says
    how many, 0: as ``rate`` has it. ``think`` is the least seconds an agent takes to answer.
    Kills and freezes wait a moment for a node that has ``aim`` calls under way.

    ``planted`` names a fault of ``chaos.planted`` that every node runs with; ``drop_keys`` takes
    the unique keys off the table of executions. ``kinds`` restricts the faults; empty: all.
    ``script`` lists the faults instead of drawing them: seconds after the start, kind, and two
    numbers from 0 to 1 that say whom and how long.
    """

    seconds: float = 60.0
    nodes: int = 3
    seed: int = 1
    rate: float = 100.0
    burst_every: float = 5.0
    burst: int = 0
    think: float = 0.0
    aim: int = 1
    store: str = "mariadb"
    terms: Terms = attrs.Factory(Terms)
    concurrency: int = 50
    planted: str = ""
    drop_keys: bool = False
    kinds: tuple[str, ...] = ()
    script: tuple[tuple[float, str, float, float], ...] = ()
    drain: float = 60.0
    """Seconds after the last fault in which everything must have ended."""
    settle_in: float = 2.0
    """Seconds without faults at the start."""
    keep: str = ""
    """Folder for the evidence and the nodes' logs; empty: a temporary one, kept on a violation."""

    def options(self) -> dict[str, str]:
        """The settings every node gets."""
        terms = self.terms
        return {
            "scheduler.heartbeat": "500ms",
            "scheduler.node_timeout": _ms(terms.node_timeout),
            "scheduler.poll_interval": "500ms",
            "scheduler.sweep_interval": "500ms",
            "scheduler.lease": _ms(terms.lease),
            "executor.callback_timeout": _ms(terms.callback_timeout),
            "executor.ga_callback_timeout": _ms(terms.report_timeout),
            "executor.retry_interval": "400ms",
            "executor.stop_timeout": "10s",
            "executor.concurrency": str(self.concurrency),
            "http.per_host": str(self.concurrency),
            "quota.min_interval": "1s",
            "quota.tasks_per_user": "100000",
            "store.pool_size": "10",
            "server.port": "0",
            "log.level": "warning",
            "log.format": "json",
        }


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
