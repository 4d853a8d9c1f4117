"""``crontask batch``: the batch jobs of owner services, for those who operate them (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from crontask_cli.render import View, emit, table, tell
from crontask_cli.shell import Argument, Group, Shell, pass_shell

if TYPE_CHECKING:
    from datetime import datetime

    from crontask_adapters.batch_wiring import Batch
    from crontask_adapters.sql.batch_sql import SqlBatchRepo
    from crontask_adapters.wiring import App
    from crontask_core.batch_model import BatchJob, BatchKey, BatchRun, Lease

__all__ = ["batch_command"]

T = TypeVar("T")
_STATUSES = ("running", "succeeded", "failed", "timed_out", "abandoned")


@click.group("batch", cls=Group, examples=["crontask batch list", "crontask batch run NAME"])
def batch_command() -> None:
    """Look after the batch jobs of owner services.

    Jobs are configuration ([batch.jobs.NAME]); nodes that fire tasks run them too.
    """


@batch_command.command("list", examples=["crontask batch list", "crontask batch list --json"])
@pass_shell
def list_command(shell: Shell) -> None:
    """List the configured jobs, one line for each app.

    With the next tick, who holds the lease, the last run, failures in a row and the back-off.
    """

    async def use(app: App) -> dict[str, Any]:
        jobs = _plan(app)
        repo = _repo(app)
        survey = await repo.survey()
        leases = {lease.key: lease for lease in survey.leases}
        last = await repo.last_runs([key for job in jobs for key in job.keys])
        rows = [
            _job_row(job, key, leases.get(key), last.get(key), survey.now, app.rules.zone)
            for job in jobs
            for key in job.keys
        ]
        count = f"{len(jobs)} batch job{'' if len(jobs) == 1 else 's'}, {len(rows)} in all apps."
        return {"message": count if rows else "No batch job is configured.", "jobs": rows}

    emit(shell, shell.with_app(use), _show_jobs)


@batch_command.command(
    "runs",
    examples=["crontask batch runs login_ip_risk --app-code lalu", "crontask batch runs --limit 5"],
)
@click.argument("name", cls=Argument, required=False, doc="Only of this job.")
@click.option("--app-code", metavar="APP", help="Only for this app.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only with this status.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="How many at most.",
)
@pass_shell
def runs_command(
    shell: Shell, name: str | None, app_code: str | None, status: str | None, limit: int
) -> None:
    """List runs, newest first.

    Also of jobs that are no longer configured, as long as retention.batch_runs_days keeps them.
    """

    async def use(app: App) -> dict[str, Any]:
        from crontask_core.batch_model import RunStatus
        from crontask_core.batch_ports import RunFilter

        where = RunFilter(
            task_name=name,
            app_code=app_code,
            status=RunStatus(status) if status else None,
            limit=limit,
        )
        runs = [run_view(run, app.rules.zone) for run in await _repo(app).runs(where)]
        return {"message": f"{len(runs)} run{'' if len(runs) == 1 else 's'}.", "runs": runs}

    emit(shell, shell.with_app(use), _show_runs)


@batch_command.command("run", examples=["crontask batch run login_ip_risk --app-code lalu"])
@click.argument("name", cls=Argument, doc="The job.")
@click.option("--app-code", metavar="APP", help="For this app; may be left out if there is one.")
@pass_shell
def run_command(shell: Shell, name: str, app_code: str | None) -> None:
    """Run a job now, from here, and wait for its end.

    Whatever its tick and pause say; it honours the lease: exits 4 while a node runs the job. Exits
    1 when the run fails.
    """

    async def use(batch: Batch) -> BatchRun:
        [key] = _keys(batch.jobs, name, app_code, one=True)
        done = await batch.drainer.run_now(*key)
        return done.run

    run = shell.with_app(lambda app: _with_batch(app, use))
    view = run_view(run, shell.settings.scheduler.timezone)
    if run.status.value != "succeeded":
        from crontask_core.errors import CrontaskError

        raise CrontaskError(
            f"the run {run.status.value.replace('_', ' ')}: {run.error_message}",
            code="BATCH_RUN_FAILED",
            hint=f"Run {run.run_id}; see: crontask batch runs {name}",
            retryable=True,
        )
    message = f"Done in {run.duration_ms} ms: {run.processed_count} processed."
    emit(shell, {"message": message, "run": view}, tell)


@batch_command.command("pause", examples=["crontask batch pause login_ip_risk --app-code lalu"])
@click.argument("name", cls=Argument, doc="The job.")
@click.option("--app-code", metavar="APP", help="Only for this app.")
@pass_shell
def pause_command(shell: Shell, name: str, app_code: str | None) -> None:
    """Stop a job from being run, on all nodes, until it is resumed.

    A run under way goes on to its end.
    """
    _set_paused(shell, name, app_code, True)


@batch_command.command("resume", examples=["crontask batch resume login_ip_risk"])
@click.argument("name", cls=Argument, doc="The job.")
@click.option("--app-code", metavar="APP", help="Only for this app.")
@pass_shell
def resume_command(shell: Shell, name: str, app_code: str | None) -> None:
    """Let a paused job be run again, from now on."""
    _set_paused(shell, name, app_code, False)


def _set_paused(shell: Shell, name: str, app_code: str | None, paused: bool) -> None:
    async def use(app: App) -> list[Lease | None]:
        jobs = _plan(app)
        keys = _keys(jobs, name, app_code)
        repo = _repo(app)
        await repo.sync([job for job in jobs if job.name == name])
        return await repo.set_paused(keys, paused)

    leases = [lease for lease in shell.with_app(use) if lease is not None]
    codes = ", ".join(lease.app_code for lease in leases)
    what = "paused" if paused else "resumed"
    rows = [{"task_name": x.task_name, "app_code": x.app_code, "paused": x.paused} for x in leases]
    emit(shell, {"message": f"{name} is {what} for {codes}.", "leases": rows}, tell)


# -- inside ----------------------------------------------------------------------------------------
def _repo(app: App) -> SqlBatchRepo:
    from crontask_adapters.sql.batch_sql import SqlBatchRepo

    return SqlBatchRepo(app.repo)


def _plan(app: App) -> tuple[BatchJob, ...]:
    from crontask_adapters.batch_settings import read_batch

    return read_batch(app.settings.batch).jobs


async def _with_batch(app: App, use: Callable[[Batch], Awaitable[T]]) -> T:
    from crontask_adapters.batch_wiring import open_batch

    batch = await open_batch(app)
    try:
        return await use(batch)
    finally:
        await batch.close()


def _keys(
    jobs: tuple[BatchJob, ...], name: str, app_code: str | None, *, one: bool = False
) -> list[BatchKey]:
    """The keys meant. Raises NotFound, and InvalidInput when one is needed and there are more."""
    from crontask_core.errors import InvalidInput, NotFound

    every = [key for job in jobs for key in job.keys]
    keys = [key for key in every if key[0] == name and app_code in (None, key[1])]
    if not keys:
        raise NotFound(
            f"no batch job {name}"
            + (f" for app {app_code}" if app_code else "")
            + " is configured",
            code="BATCH_JOB_NOT_FOUND",
            field="name",
            received=name,
            hint="`crontask batch list` shows those there are.",
            candidates=[" ".join(key) for key in every][:5],
        )
    if one and len(keys) > 1:
        raise InvalidInput(
            f"{name} runs for several apps",
            code="MISSING_ARGUMENT",
            field="--app-code",
            hint="Name one of them.",
            example=keys[0][1],
            candidates=[code for _, code in keys][:5],
        )
    return keys


def run_view(run: BatchRun, zone: str) -> dict[str, Any]:
    """A run as it is shown: seed B's fields, times as local text."""
    return {
        "run_id": run.run_id,
        "task_name": run.task_name,
        "app_code": run.app_code,
        "worker_id": run.owner_node_id,
        "status": run.status.value,
        "started_at": _local(run.started_at_ms, zone),
        "finished_at": _local(run.finished_at_ms, zone),
        "duration_ms": run.duration_ms,
        "claimed_count": run.claimed_count,
        "processed_count": run.processed_count,
        "success_count": run.success_count,
        "failure_count": run.failure_count,
        "batch_count": run.batch_count,
        "error_message": run.error_message,
    }


def _local(at_ms: int | None, zone: str) -> str | None:
    from crontask_adapters.times import local
    from crontask_core.batch_model import from_ms

    return None if at_ms is None else local(from_ms(at_ms), zone)


def _job_row(
    job: BatchJob,
    key: BatchKey,
    lease: Lease | None,
    last: BatchRun | None,
    now: datetime,
    zone: str,
) -> dict[str, Any]:
    from crontask_adapters.batch_settings import describe_job
    from crontask_adapters.settings_fields import show_duration
    from crontask_adapters.times import relative
    from crontask_core.batch_model import from_ms
    from crontask_core.policy.batches import backoff

    row = {**describe_job(job), "app_code": key[1], "last_run": None}
    del row["app_codes"]
    if last is not None:
        row["last_run"] = run_view(last, zone)
    if lease is None:
        return row | {
            "state": "new",
            "holder": "",
            "failures": 0,
            "backoff": "",
            "next_run_at": None,
        }
    held = bool(lease.owner_node_id)
    due = from_ms(lease.next_run_at_ms)
    return row | {
        "state": "running" if held else "paused" if lease.paused else "waiting",
        "paused": lease.paused,
        "holder": lease.owner_node_id,
        "lease_until": _local(lease.lease_until_ms, zone) if held else None,
        "epoch": lease.epoch,
        "failures": lease.failures,
        "backoff": show_duration(backoff(job.interval, lease.failures)) if lease.failures else "",
        "next_run_at": None if lease.paused else _local(lease.next_run_at_ms, zone),
        "next_run": "" if lease.paused else relative(due, now),
    }


def _show_jobs(view: View) -> None:
    heads = ("JOB", "APP", "EVERY", "STATE", "NEXT", "HOLDER", "FAILURES", "BACK-OFF", "LAST RUN")
    rows = []
    for job in view["jobs"]:
        last = job["last_run"]
        told = f"{last['status']} {last['started_at']} ({last['processed_count']})" if last else ""
        state = f"{job['state']}, paused" if job.get("paused") and job["holder"] else job["state"]
        rows.append(
            [
                job["name"],
                job["app_code"],
                job["interval"],
                state,
                job.get("next_run", ""),
                job["holder"],
                job["failures"],
                job["backoff"],
                told,
            ]
        )
    if rows:
        table(heads, rows, right="FAILURES")
    tell(view)


def _show_runs(view: View) -> None:
    heads = ("STARTED", "JOB", "APP", "STATUS", "MS", "BATCHES", "CLAIMED", "PROCESSED", "NODE",
             "NOTE")  # fmt: skip
    names = ("started_at", "task_name", "app_code", "status", "duration_ms", "batch_count",
             "claimed_count", "processed_count", "worker_id", "error_message")  # fmt: skip
    if view["runs"]:
        rows = [[run[name] for name in names] for run in view["runs"]]
        table(heads, rows, right="MS BATCHES CLAIMED PROCESSED")
    tell(view)
