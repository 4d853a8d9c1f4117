"""The order of waiting fires, with keys written out."""

from __future__ import annotations

import pytest

from crontask_core.policy import QueueView, queue_ready
from tests.builders import T0, at

NOW = 1_772_413_200_000_000  # T0 in microseconds
SECOND = 1_000_000


def keys(queue: QueueView, *users: str) -> list[int]:
    return [row.queue_key for row in queue_ready(queue, [(u, "h") for u in users], T0)]


def test_an_empty_queue_starts_at_now() -> None:
    assert keys(QueueView(), "ann") == [NOW]


@pytest.mark.requirement("X-F2")
def test_one_users_fires_line_up_a_second_apart() -> None:
    assert keys(QueueView(), "ann", "ann", "ann") == [NOW, NOW + SECOND, NOW + 2 * SECOND]


@pytest.mark.requirement("X-F2")
def test_another_user_starts_at_the_head_of_the_queue() -> None:
    queue = QueueView(head=NOW - 50 * SECOND, tails={"ann": NOW + 900 * SECOND})
    assert keys(queue, "bea", "ann", "bea") == [
        NOW - 50 * SECOND,
        NOW + 901 * SECOND,
        NOW - 49 * SECOND,
    ]


def test_a_user_whose_tail_is_behind_the_head_starts_at_the_head() -> None:
    assert keys(QueueView(head=NOW, tails={"ann": NOW - 5 * SECOND}), "ann") == [NOW]


@pytest.mark.requirement("X-F2")
def test_a_thousand_fires_delay_another_users_one_by_none() -> None:
    mine = keys(QueueView(), *["ann"] * 1_000)
    hers = keys(QueueView(head=mine[0], tails={"ann": mine[-1]}), "bea")
    assert sum(key < hers[0] for key in mine) == 0


def test_rows_carry_user_and_host_and_wait_for_their_execution() -> None:
    [row] = queue_ready(QueueView(), [("ann", "agent.test:80")], at(seconds=1))
    assert (row.execution_id, row.user_id, row.callback_host) == (0, "ann", "agent.test:80")
    assert row.queue_key == NOW + SECOND
