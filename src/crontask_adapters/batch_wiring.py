"""The assembler of the batch side: from settings to a ``Drainer`` with its owners (DESIGN 7).

Apart from ``wiring``, so that an installation without batch jobs loads nothing of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from crontask_adapters.batch_settings import GRPC, OwnerTarget, read_batch
from crontask_adapters.ids import default_node_id, incarnation
from crontask_adapters.settings_load import SettingsError
from crontask_adapters.sql.batch_sql import SqlBatchRepo
from crontask_core.batch import Drainer
from crontask_core.batch_model import BatchJob
from crontask_core.batch_ports import Owner
from crontask_core.errors import ConfigError

if TYPE_CHECKING:
    from crontask_adapters.metrics import Reading
    from crontask_adapters.wiring import App

__all__ = ["Batch", "open_batch"]


@attrs.frozen(kw_only=True)
class Batch:
    """An assembled batch side. ``owners`` by name, also in ``drainer``."""

    app: App
    jobs: tuple[BatchJob, ...]
    drainer: Drainer
    repo: SqlBatchRepo
    owners: dict[str, Owner]

    async def close(self) -> None:
        """Close the connections to owners; the store is the app's."""
        for owner in self.owners.values():
            await owner.close()


async def open_batch(app: App) -> Batch:
    """Read ``batch.*`` and make a driver for each owner that a job names.

    Raises SettingsError, and ConfigError for what only an owner's classes or certificates can
    tell, or for a missing extra: an unknown job, method or owner fails here, at start (B6).
    """
    plan = read_batch(app.settings.batch)
    if plan.problems:
        raise SettingsError(plan.problems)
    owners: dict[str, Owner] = {}
    try:
        for name in sorted({job.owner for job in plan.jobs}):
            jobs = [job for job in plan.jobs if job.owner == name]
            owners[name] = _owner(app, plan.owners[name], jobs)
    except BaseException:
        for owner in owners.values():
            await owner.close()
        raise
    repo = SqlBatchRepo(app.repo)
    name = app.settings.scheduler.node_id or default_node_id()
    drainer = Drainer(
        repo=repo,
        owners=owners,
        clock=app.clock,
        observer=app.observer,
        jobs=plan.jobs,
        node=f"{name[:100]}#{incarnation()}",
        caller=app.settings.batch.caller,
        slots=app.settings.batch.slots,
    )
    _measure(app, drainer)
    return Batch(app=app, jobs=plan.jobs, drainer=drainer, repo=repo, owners=owners)


def _owner(app: App, target: OwnerTarget, jobs: Sequence[BatchJob]) -> Owner:
    if target.driver != GRPC:
        return _http_owner(app, target)
    try:
        from crontask_adapters.batch_grpc import GrpcOwner, check_jobs, load_messages
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"owner {target.name} is called over gRPC, but {error.name} is not installed",
            field=f"{target.field}.driver",
            hint="install the extra: pip install 'crontask[grpc]'",
        ) from None
    messages = load_messages(target)
    check_jobs(target, messages, jobs)
    return GrpcOwner(target, messages)


def _http_owner(app: App, target: OwnerTarget) -> Owner:
    from crontask_adapters.batch_http import HttpOwner
    from crontask_adapters.client_options import ClientOptions

    options = ClientOptions(
        concurrency=app.settings.batch.slots,
        max_idle=app.settings.batch.slots,
        per_host=app.settings.batch.slots,
        ca_file=target.ca_file or None,
    )
    if app.settings.executor.http_client == "httpx":
        from crontask_adapters.ga_httpx import HttpxClient

        return HttpOwner(target, HttpxClient(options, now=app.clock.now))
    from crontask_adapters.ga_aiohttp import AiohttpClient

    return HttpOwner(target, AiohttpClient(options, now=app.clock.now))


def _measure(app: App, drainer: Drainer) -> None:
    """Gauges of the configured jobs: name and app come from configuration, so they are few."""
    metrics = app.metrics
    if metrics is None:
        return

    def failures() -> Reading:
        return {key: float(count) for key, count in drainer.failures.items()}

    def backlog() -> Reading:
        said = drainer.fresh_backlogs().items()
        return {key: float(n.pieces) for key, n in said if n.pieces is not None}

    def oldest() -> Reading:
        said = drainer.fresh_backlogs().items()
        return {key: n.oldest_ms / 1000 for key, n in said if n.oldest_ms is not None}

    metrics.watch("batch_consecutive_failures", failures)
    metrics.watch("batch_backlog", backlog)
    metrics.watch("batch_oldest_pending_seconds", oldest)
