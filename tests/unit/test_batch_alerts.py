"""The alert rules that ship name metrics and labels that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crontask_adapters.metrics import COUNTED, OBSERVED, PREFIX, READ

RULES = Path(__file__).resolve().parents[2] / "deploy/alerts/batch.yml"


@pytest.mark.requirement("B8")
def test_the_alert_rules_cover_what_the_batch_document_asks_for() -> None:
    text = RULES.read_text()
    alerts = re.findall(r"alert: (\w+)", text)
    assert alerts == [
        "CrontaskBatchFailing",
        "CrontaskBatchOwnerUnavailable",
        "CrontaskBatchTimeouts",
        "CrontaskBatchBacklogGrows",
        "CrontaskBatchOldestPending",
        "CrontaskBatchNotRun",
        "CrontaskBatchAbandoned",
        "CrontaskBatchNoProgress",
    ]
    for part in text.split("- alert:")[1:]:
        assert all(word in part for word in ("expr:", "severity:", "summary:", "remedy:"))


def test_every_metric_and_label_of_the_alert_rules_exists() -> None:
    labels = {name: part for name, (_, part) in COUNTED.items()}
    labels |= {name: part for name, (_, part, _) in OBSERVED.items()}
    labels |= {name: part for name, (_, _, part) in READ.items()}
    found = re.findall(rf"{PREFIX}(\w+)(?:\{{(\w+)=)?", RULES.read_text())
    assert found
    for name, label in found:
        assert name in labels
        assert not label or label in labels[name]
        assert {"task", "app"} <= set(labels[name])
