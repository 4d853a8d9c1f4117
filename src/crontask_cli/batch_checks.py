"""What ``crontask doctor`` says of batch jobs: waiting ticks, hanging leases, streaks, owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crontask_cli.doctor import Check

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_core.batch_model import BatchJob, BatchKey, Lease

__all__ = ["batch_checks"]

_LATE_MS = 60_000
_STREAK = 3
_OWNER_SECONDS = 3.0


async def batch_checks(app: App) -> list[Check]:
    """The checks of the configured jobs; none when there are none."""
    if not app.settings.batch.jobs:
        return []
    from crontask_adapters.batch_wiring import open_batch
    from crontask_core.batch_model import to_ms
    from crontask_core.errors import CrontaskError

    try:
        batch = await open_batch(app)
    except CrontaskError as error:
        return [Check("batch jobs", "bad", error.message, error.hint)]
    try:
        survey = await batch.repo.survey()
        leases = {lease.key: lease for lease in survey.leases}
        jobs = {key: job for job in batch.jobs for key in job.keys}
        found = [*_job_checks(jobs, leases, to_ms(survey.now))]
        for name, owner in batch.owners.items():
            health = await owner.health(_OWNER_SECONDS)
            state = "bad" if health.state == "bad" else "ok"
            remedy = "Start it, or correct its address." if state == "bad" else ""
            found.append(Check(f"owner {name}", state, health.found, remedy))
        return found
    finally:
        await batch.close()


def _job_checks(
    jobs: dict[BatchKey, BatchJob], leases: dict[BatchKey, Lease], now: int
) -> Iterator[Check]:
    from crontask_core.batch_model import span_ms

    stuck, late, failing = [], [], []
    for key, job in jobs.items():
        lease = leases.get(key)
        name = "/".join(key)
        if lease is None:
            late.append(name)
            continue
        if lease.failures >= _STREAK:
            failing.append(f"{name} ({lease.failures} in a row)")
        limit = max(_LATE_MS, 3 * span_ms(job.interval))
        if lease.owner_node_id and lease.lease_until_ms + _LATE_MS < now:
            stuck.append(f"{name} (held by {lease.owner_node_id})")
        elif not lease.paused and not lease.owner_node_id and lease.next_run_at_ms + limit < now:
            late.append(name)
    if stuck:
        remedy = "Its holder is gone and no node takes over: start one (crontask worker)."
        yield Check("batch leases", "bad", f"long over: {', '.join(stuck)}", remedy)
    if late:
        remedy = "No node runs them: start one with this configuration; see crontask batch list."
        yield Check("batch ticks", "bad", f"not run when due: {', '.join(late)}", remedy)
    if failing:
        remedy = "See crontask batch runs --status failed, and the log of the owner."
        yield Check("batch failures", "warn", ", ".join(failing), remedy)
    if not (stuck or late or failing):
        yield Check("batch jobs", "ok", f"all {len(jobs)} keep their rhythm")
