"""How the servers go about each pass on tables of 200,000 rows: by which index, and what it locks.

The plan is asked for right before each statement that a pass really runs, with its own values.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from crontask_adapters.sql.repo import SqlRepo, open_repo
from crontask_adapters.sql.upgrade import upgrade
from crontask_core.errors import CrontaskError
from crontask_core.policy import Outcome, Verdict
from crontask_core.ports import ManualRequest, TaskRef
from tests.builders import RULES, accepted, report, retry
from tests.integration.plans import BUSIEST, explained, load, measured

SERVERS = ["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)]
PRIMARY = "PRIMARY"


@pytest.fixture(scope="module", params=SERVERS)
def big_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with big tables, made once for the tests of this file."""

    async def fill(url: str) -> None:
        await upgrade(url)
        await load(url)

    server = request.getfixturevalue(f"{request.param}_server")
    with server.database() as url, ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, fill(url)).result()
        yield url


@pytest.fixture
async def repo(big_url: str) -> AsyncIterator[SqlRepo]:
    made = await open_repo(big_url, rules=RULES, pool_size=1)
    yield made
    await made.close()


def _outcome(number: int, now: datetime, verdict: Verdict | None) -> Outcome:
    return Outcome(
        execution_id=number,
        task_id=number,
        fence=1,
        started_at=now,
        ended_at=now,
        revision=1,
        verdict=verdict,
    )


async def _settle(
    repo: SqlRepo, node: int, make: Callable[[int], Verdict | None], half: int
) -> int:
    """Outcomes of 50 of the calls of a node: their number ends in its own."""
    now = datetime.now(UTC)
    mine = range(node + half * 500, 1 + node + half * 500 + 490, 10)
    done = await repo.settle(f"n{node}", [_outcome(n, now, make(n)) for n in mine])
    return sum(not settled.lost for settled in done)


def _good(answers: list[Any]) -> int:
    return sum(not isinstance(answer, CrontaskError) for answer in answers)


async def _report(repo: SqlRepo, first: int, half: int, **names: Any) -> int:
    numbers = range(first + half * 50, first + half * 50 + 50)
    runs = [
        report(n, names["run"].format(n), **{k: v(n) for k, v in names.items() if k != "run"})
        for n in numbers
    ]
    return _good(await repo.report(runs))


def _by_fire(n: int) -> str:
    return f"fire-{n}"


async def _claim(repo: SqlRepo, half: int) -> int:
    return (await repo.claim("n1", 200, 50)).tasks


async def _claim_named(repo: SqlRepo, half: int) -> int:
    named = range(104_000 + half * 50, 104_050 + half * 50)
    return (await repo.claim("n1", 50, 50, only=list(named))).tasks


async def _begin(repo: SqlRepo, half: int) -> int:
    return len((await repo.begin("n1", 50)).started)


async def _begin_past_a_dead_host(repo: SqlRepo, half: int) -> int:
    return len((await repo.begin("n1", 50, capped_hosts=["dead"])).started)


async def _one_of_many(repo: SqlRepo, half: int) -> int:
    number = 150_000 + half
    reports = [report(BUSIEST, f"run-{number}"), report(BUSIEST, f"old-run-{number + 50}")]
    answers = [(await repo.report([one]))[0] for one in reports]
    return _good(answers)


async def _cancel(repo: SqlRepo, half: int) -> int:
    first = 15_001 + half * 20
    return _good(await repo.cancel(None, list(range(first, first + 20)), "not needed"))


async def _length(answer: Awaitable[Any]) -> int:
    return len(await answer)


async def _moved(answer: Awaitable[Any]) -> int:
    return len((await answer).moved)


async def _run_now(repo: SqlRepo, half: int) -> int:
    asked = [ManualRequest(user_id=None, ref=TaskRef(id=BUSIEST), key=f"once-{half}")]
    for n in range(16_001, 16_020):
        user, ref = f"user-{n % 1000}", TaskRef(key=f"key-{n}")
        asked.append(ManualRequest(user_id=user, ref=ref, key=f"once-{half}"))
    return _good(await repo.fire_now(asked))


@attrs.frozen
class Pass:
    """``run`` does it to the first or the second half of some rows and says to how many.

    ``by``: each table that is read, and the index it may be read by. ``reads``: how many index
    entries and rows one may cost, at most.
    """

    run: Callable[[SqlRepo, int], Awaitable[Any]]
    rows: int | None
    by: dict[str, set[str]]
    reads: int


TASK, EXEC, READY = "t_cron_task", "t_task_execution", "t_ready_fire"
INBOX, CALLS, NODES = "t_report_inbox", "t_execution_attempt", "t_cron_node"
QUEUE = {READY: {"ix_ready_user", "ix_ready_queue"}}
LOOK_UP = {TASK: {PRIMARY}, EXEC: {PRIMARY}}
BY_RUN = {
    EXEC: {PRIMARY, "ix_execution_task_run", "ix_execution_task_action", "uk_execution_fire"},
    CALLS: {PRIMARY, "ix_attempt_run"},
    TASK: {PRIMARY},
}
PASSES: dict[str, Pass] = {
    "horizon": Pass(
        lambda repo, half: repo.horizon(),
        None,
        {TASK: {"ix_cron_task_next_fire"}, EXEC: {"ix_execution_next_action"}},
        10,
    ),
    "due": Pass(
        lambda repo, half: _length(repo.due(200)), 200, {TASK: {"ix_cron_task_next_fire"}}, 201
    ),
    "claim": Pass(
        _claim,
        200,
        QUEUE
        | {
            TASK: {"ix_cron_task_next_fire", PRIMARY},
            EXEC: {"uk_execution_fire_id", "ix_execution_task_action"},
        },
        200 * 9,
    ),
    "claim of named tasks": Pass(
        _claim_named,
        50,
        QUEUE | {TASK: {PRIMARY}, EXEC: {"uk_execution_fire_id", "ix_execution_task_action"}},
        50 * 11,
    ),
    "begin": Pass(_begin, 50, LOOK_UP | {READY: {"ix_ready_queue", PRIMARY}}, 50 * 10),
    "begin past a dead host": Pass(
        _begin_past_a_dead_host, 50, LOOK_UP | {READY: {"ix_ready_queue", PRIMARY}}, 50 * 20
    ),
    "settle of accepted calls": Pass(
        lambda repo, half: _settle(repo, 1, lambda n: accepted(f"new-{n}"), half),
        50,
        LOOK_UP | {INBOX: {PRIMARY}},
        50 * 8,
    ),
    "settle of failed calls": Pass(
        lambda repo, half: _settle(repo, 2, lambda n: retry(), half), 50, LOOK_UP, 50 * 8
    ),
    "settle of calls handed back": Pass(
        lambda repo, half: _settle(repo, 3, lambda n: None, half), 50, LOOK_UP | QUEUE, 50 * 12
    ),
    "report by fire id": Pass(
        lambda repo, half: _report(repo, 2_001, half, run="x", fire_id=_by_fire),
        50,
        LOOK_UP | {EXEC: {PRIMARY, "uk_execution_fire_id"}},
        50 * 8,
    ),
    "report by execution id": Pass(
        lambda repo, half: _report(repo, 2_201, half, run="x", execution_id=int),
        50,
        LOOK_UP,
        50 * 8,
    ),
    "report by run id": Pass(
        lambda repo, half: _report(repo, 2_401, half, run="run-{}"), 50, BY_RUN, 50 * 40
    ),
    "report by the run id of an older call": Pass(
        lambda repo, half: _report(repo, 2_601, half, run="old-run-{}"), 50, BY_RUN, 50 * 40
    ),
    "report for one of 100,000 executions of a task": Pass(
        _one_of_many,
        2,
        LOOK_UP | {EXEC: {PRIMARY, "ix_execution_task_run"}, CALLS: {"ix_attempt_run"}},
        20,
    ),
    "report that comes early": Pass(
        lambda repo, half: _report(repo, 601, half, run="new-{}"),
        50,
        BY_RUN | {INBOX: {PRIMARY}},
        50 * 40,
    ),
    "sweep": Pass(
        lambda repo, half: _moved(repo.sweep(200)),
        200,
        QUEUE
        | {
            EXEC: {"ix_execution_next_action", PRIMARY},
            INBOX: {PRIMARY, "ix_inbox_expires"},
            TASK: {PRIMARY},
        },
        200 * 12,
    ),
    "mine": Pass(
        lambda repo, half: _length(repo.mine("n4")),
        100,
        {EXEC: {"ix_execution_node_action"}, TASK: {PRIMARY}},
        100 * 5,
    ),
    "heartbeat": Pass(lambda repo, half: repo.heartbeat("n5"), None, {NODES: {PRIMARY}}, 2),
    "retire": Pass(
        lambda repo, half: _length(repo.retire([(f"n{8 + half}", 0)], "silent")),
        100,
        LOOK_UP | QUEUE | {EXEC: {"ix_execution_node_action", PRIMARY}, NODES: {PRIMARY}},
        100 * 10,
    ),
    "cancel": Pass(_cancel, 20, LOOK_UP | {READY: {PRIMARY}}, 20 * 12),
    "run now": Pass(
        _run_now,
        20,
        QUEUE
        | {
            TASK: {PRIMARY, "uk_cron_task_key"},
            EXEC: {
                *(PRIMARY, "uk_execution_fire_id", "uk_execution_fire"),
                *("ix_execution_task_action", "ix_execution_task_run"),
            },
        },
        20 * 12,
    ),
}


@pytest.mark.parametrize("name", list(PASSES))
async def test_a_pass_uses_its_index_sorts_no_table_and_locks_at_most_two_records_a_row(
    name: str, repo: SqlRepo
) -> None:
    it = PASSES[name]
    with explained() as steps:
        first = await it.run(repo, 0)
    with measured() as cost:
        second = await it.run(repo, 1)
    if it.rows is not None:
        assert (first, second) == (it.rows, it.rows)

    read = [step for step in steps if step.reads_a_table]
    wrong = [step for step in read if step.index not in it.by.get(step.table, {PRIMARY})]
    assert wrong == [], "\n".join(map(str, wrong))
    sorts = [step for step in read if "filesort" in step.extra and step.rows > 200]
    assert sorts == [], "\n".join(map(str, sorts))
    assert cost.locked <= max(2 * cost.returned, 1), cost
    assert cost.read <= it.reads, cost


async def test_a_row_that_is_passed_over_is_not_locked(repo: SqlRepo) -> None:
    with measured() as cost:
        begun = await repo.begin("n1", 10, capped_hosts=["agent"])
    assert len(begun.started) == 10
    assert cost.locked <= 2 * cost.returned
