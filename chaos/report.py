"""The figures of a run, and the words they are printed in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import attrs

from chaos.checker import Violation
from chaos.evidence import Delivery, Evidence
from chaos.windows import Windows

__all__ = ["Figures", "figures_of", "shown"]

_SHOWN = 20
_STATES = {
    2: "success",
    3: "failed",
    4: "timed out",
    5: "cancelled",
    6: "skipped",
}


@attrs.frozen(kw_only=True)
class Figures:
    """``again`` counts deliveries beyond the first by cause: an agent's missing answer, or the
    fault. ``takeover`` is the longest from the kill of a node to its call being free again, in
    seconds; ``lateness`` is from due to the agent, p50 and p99, in seconds."""

    fires: int
    deliveries: int
    faults: dict[str, int]
    lost: int
    doubled: int
    again: dict[str, int]
    takeovers: int
    takeover: float
    lateness: tuple[float, float]
    states: dict[str, int]
    reports: dict[str, int]
    edits: dict[str, int]


def figures_of(evidence: Evidence, violations: Sequence[Violation]) -> Figures:
    """Count a run."""
    sent: dict[str, list[Delivery]] = defaultdict(list)
    for call in sorted(evidence.deliveries, key=lambda d: d.at):
        sent[call.fire_id].append(call)
    late = sorted(calls[0].at - calls[0].fire_us / 1e6 for calls in sent.values())
    spans = _takeovers(evidence)
    rules = Counter(v.rule for v in violations)
    return Figures(
        fires=sum(max(1, row.missed_count) for row in evidence.executions),
        deliveries=len(evidence.deliveries),
        faults=_counted(f.kind for f in evidence.faults),
        lost=rules["lost"],
        doubled=rules["doubled"],
        again=_again(evidence, sent),
        takeovers=sum(row.takeovers for row in evidence.executions),
        takeover=max(spans, default=0.0),
        lateness=(_part(late, 0.5), _part(late, 0.99)),
        states=_counted(_STATES.get(row.status, str(row.status)) for row in evidence.executions),
        reports=_counted(r.outcome.partition(":")[0] or "unanswered" for r in evidence.reports),
        edits=_counted(a.what for a in evidence.actions if a.what != "create"),
    )


def _counted(names: object) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))  # type: ignore[call-overload]


def _again(evidence: Evidence, sent: dict[str, list[Delivery]]) -> dict[str, int]:
    windows = Windows.of(evidence)
    causes: Counter[str] = Counter()
    for calls in sent.values():
        for call in calls[:-1]:
            if not windows.accepted(call):
                causes[f"agent: {call.answer}"] += 1
            else:
                cause = windows.cause(call) or windows.kept_waiting(call)
                causes[cause or "no cause"] += 1
    return dict(sorted(causes.items()))


def _takeovers(evidence: Evidence) -> list[float]:
    """From the moment a node was killed to each of its calls being free again."""
    lost = {f.node: f.start for f in evidence.faults if f.kind == "kill"}
    return [
        attempt.ended_us / 1e6 - lost[attempt.node]
        for attempt in evidence.attempts
        if attempt.outcome == "unknown" and attempt.ended_us and attempt.node in lost
    ]


def _part(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def shown(figures: Figures, violations: Sequence[Violation], seed: int) -> str:
    """What is printed at the end."""
    lines = [
        f"fires           {figures.fires}  ({_list(figures.states)})",
        f"deliveries      {figures.deliveries}",
        f"faults          {sum(figures.faults.values())}  ({_list(figures.faults)})",
        f"edits           {sum(figures.edits.values())}  ({_list(figures.edits)})",
        f"lost            {figures.lost}",
        f"doubled rows    {figures.doubled}",
        f"delivered again {sum(figures.again.values())}  ({_list(figures.again)})",
        f"reports         {sum(figures.reports.values())}  ({_list(figures.reports)})",
        f"take-overs      {figures.takeovers}, the slowest {figures.takeover:.2f} s",
        f"lateness        p50 {figures.lateness[0]:.3f} s, p99 {figures.lateness[1]:.3f} s",
    ]
    if violations:
        rules = Counter(v.rule for v in violations)
        lines.append(f"VIOLATIONS      {len(violations)}  ({_list(dict(rules))})")
        lines += [f"  {violation}" for violation in violations[:_SHOWN]]
        lines.append(f"Repeat it with --seed {seed}")
    else:
        lines.append(f"No promise was broken (seed {seed}).")
    return "\n".join(lines)


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
