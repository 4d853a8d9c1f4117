"""Batch jobs out of the TOML file: what is taken, and every fault with its key (B1, B6)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from crontask_adapters.batch_settings import BatchPlan, OwnerTarget, read_batch
from crontask_core.batch_model import BatchJob
from tests.settings_kit import Loader

ROOT = Path(__file__).resolve().parents[2]

OWNERS = """
[batch.owners.user]
address = "127.0.0.1:13005"
[batch.owners.web]
driver = "http"
address = "http://127.0.0.1:8080"
"""
JOB = """
[batch.jobs.risk]
owner = "user"
method = "/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch"
interval = "5s"
app_codes = ["lalu"]
"""


@pytest.fixture
def load_with(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def plan(load_with: Loader, toml: str) -> BatchPlan:
    return read_batch(load_with(toml).settings.batch)


@pytest.mark.requirement("B1")
def test_a_job_takes_the_keys_of_the_batch_document(load_with: Loader) -> None:
    toml = OWNERS + JOB + (
        'timeout = "3s"\nlock_ttl = "60s"\nbatch_size = 500\nenabled = true\nmax_round = "20s"\n'
        'pending_publish_max_age = "2m"\npublishing_session_max_age = "12h"\n'
    )  # fmt: skip
    [job] = plan(load_with, toml).jobs
    assert job == BatchJob(
        name="risk",
        owner="user",
        method="/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch",
        interval=timedelta(seconds=5),
        timeout=timedelta(seconds=3),
        lock_ttl=timedelta(seconds=60),
        batch_size=500,
        app_codes=("lalu",),
        max_round=timedelta(seconds=20),
        extra={
            "pending_publish_max_age_ms": 120_000,
            "publishing_session_max_age_ms": 43_200_000,
        },
    )


@pytest.mark.requirement("B1")
def test_what_is_left_out_has_a_default(load_with: Loader) -> None:
    found = plan(load_with, OWNERS + JOB)
    [job] = found.jobs
    assert (job.timeout, job.lock_ttl) == (timedelta(seconds=10), timedelta(seconds=30))
    assert (job.max_round, job.batch_size, dict(job.extra)) == (timedelta(seconds=20), 100, {})
    assert found.owners["user"] == OwnerTarget(name="user", address="127.0.0.1:13005")


@pytest.mark.requirement("B1")
def test_the_four_jobs_of_the_example_are_read(load_with: Loader) -> None:
    settings = load_with((ROOT / "examples/batch.toml").read_text()).settings
    assert (settings.batch.grpc_health_port, settings.batch.caller) == (13007, "cron-service")
    found = read_batch(settings.batch)
    assert found.problems == ()
    rows = [
        (j.name, j.owner, j.interval.seconds, j.timeout.seconds, j.lock_ttl.seconds, j.batch_size)
        for j in found.jobs
    ]
    assert rows == [
        ("login_ip_risk", "user", 5, 3, 30, 100),
        ("user_region_rebuild", "user", 5, 5, 30, 500),
        ("message_fanout", "activity", 1, 10, 30, 500),
        ("mic_open_session_compensation", "user", 60, 10, 60, 100),
    ]
    assert {job.app_codes for job in found.jobs} == {("lalu",)}


def test_a_job_that_is_not_enabled_is_checked_and_not_run(load_with: Loader) -> None:
    assert plan(load_with, OWNERS + JOB + "enabled = false\n").jobs == ()
    faults = load_with.faults(OWNERS + JOB + "enabled = false\ntimeot = 3\n")
    assert [p.field for p in faults] == ["batch.jobs.risk.timeot"]


@pytest.mark.requirement("B1", "B6")
@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ('timeot = "3s"', "timeot", "there is no key timeot"),
        ('timeout = "soon"', "timeout", "is not a duration"),
        ('timeout = "0s"', "timeout", "must be between 10ms and 366d"),
        ('timeout = "30s"', "lock_ttl", "lock_ttl must be longer than timeout"),
        ('lock_ttl = "5s"', "lock_ttl", "lock_ttl must be longer than timeout"),
        ('max_round = "0s"', "max_round", "must be longer than zero"),
        ("batch_size = 0", "batch_size", "must be between 1 and 2147483647"),
        ("batch_size = 'many'", "batch_size", "is not a whole number"),
        ("extra = 3", "extra", "it is a table of numbers, texts, true and false"),
        ("extra = {run_id = 'x'}", "extra", "run_id is set by crontask itself"),
        ("extra = {days = [1]}", "extra", "it is a table of numbers, texts, true and false"),
        (
            'pending_publish_max_age = "2m"\nextra = {pending_publish_max_age_ms = 1}',
            "pending_publish_max_age",
            "is given twice",
        ),
    ],
)
def test_a_wrong_value_of_a_job_is_told_with_its_key(
    load_with: Loader, change: str, field: str, text: str
) -> None:
    [problem] = load_with.faults(f"{OWNERS}{JOB}{change}\n")
    assert problem.field == f"batch.jobs.risk.{field}"
    assert text in problem.message


@pytest.mark.requirement("B6")
@pytest.mark.parametrize(
    ("old", "new", "field", "text"),
    [
        ('owner = "user"', 'owner = "usr"', "owner", "there is no owner usr"),
        ('interval = "5s"\n', "", "interval", "interval is missing"),
        ('["lalu"]', "[]", "app_codes", "must name at least one app"),
        ('["lalu"]', '["lalu", "lalu"]', "app_codes", "names an app twice"),
        ('["lalu"]', '["la lu"]', "app_codes", "has 'la lu'"),
        ("/hyapp", "hyapp", "method", "is not a full method name of gRPC"),
        ('owner = "user"\nmethod = "/', 'owner = "web"\nmethod = "x', "method", "is not a path"),
    ],
)
def test_a_target_that_cannot_be_called_is_told_at_start(
    load_with: Loader, old: str, new: str, field: str, text: str
) -> None:
    assert old in JOB
    [problem] = load_with.faults(OWNERS + JOB.replace(old, new))
    assert problem.field == f"batch.jobs.risk.{field}"
    assert text in problem.message


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ('address = "http://127.0.0.1:1"', "address", "is not an address for gRPC"),
        ('address = "user-service"', "address", "is not an address for gRPC"),
        ('adress = "127.0.0.1:1"', "adress", "there is no key adress"),
        ('address = "a:1"\ndriver = "soap"', "driver", "is not one of grpc, http"),
        ('address = "a:1"\nca_file = "ca.pem"', "tls", "ca_file is given, but tls is off"),
        ('address = "a:1"\ntls = true\ncert_file = "c"', "cert_file", "go together"),
        ('address = "a:1"\nrequest = "m:R"', "request", "request and reply go together"),
        ('address = "a:1"\nrequest = "m"\nreply = "m:R"', "request", "is not MODULE:CLASS"),
        ('address = "a:1"\ndriver = "http"', "address", "is not the URL of a service"),
        ('address = "http://a:1"\ndriver = "http"\ntls = true', "tls", "tls is for gRPC"),
    ],
)
def test_a_wrong_owner_is_told_with_its_key(
    load_with: Loader, change: str, field: str, text: str
) -> None:
    problems = load_with.faults(f"[batch.owners.user]\n{change}\n")
    assert problems[0].field == f"batch.owners.user.{field}"
    assert text in problems[0].message


def test_every_fault_is_told_at_once(load_with: Loader) -> None:
    bad = JOB.replace('"5s"', '"5x"').replace("risk", "login") + JOB.replace('"user"', '"none"')
    assert [p.field for p in load_with.faults(OWNERS + bad)] == [
        "batch.jobs.login.interval",
        "batch.jobs.risk.owner",
    ]


def test_what_is_secret_of_an_owner_is_not_shown(load_with: Loader) -> None:
    toml = OWNERS + JOB + '[batch.owners.user.metadata]\nauthorization = "Bearer s3cret"\n'
    settings = load_with(toml).settings
    found = read_batch(settings.batch)
    assert found.owners["user"].metadata == {"authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(settings) + repr(found)
