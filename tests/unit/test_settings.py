"""Settings: where values come from, how they are read, what is refused, what is never shown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.gen_settings import PAGE, settings_page

from crontask_adapters.settings import Settings, default_store_url, specs, value_of
from crontask_adapters.settings_fields import Kind, Spec, read, show_duration
from crontask_adapters.settings_load import SettingsError, describe, env_name, load
from crontask_core.model import OverlapPolicy, Rules
from tests.settings_kit import Loader

# The settings the rules list, with the defaults they give.
DEFAULTS = {
    "store.pool_size": 20,
    "redis.url": "",
    "redis.lock": "auto",
    "scheduler.timezone": "Asia/Shanghai",
    "scheduler.poll_interval": timedelta(seconds=1),
    "scheduler.compensate_window": timedelta(minutes=30),
    "scheduler.sweep_interval": timedelta(seconds=5),
    "scheduler.claim_batch": 200,
    "scheduler.lease": timedelta(seconds=60),
    "scheduler.heartbeat": timedelta(seconds=2),
    "scheduler.node_timeout": timedelta(seconds=10),
    "scheduler.node_id": "",
    "executor.concurrency": 50,
    "executor.http_client": "aiohttp",
    "executor.callback_timeout": timedelta(seconds=30),
    "executor.default_callback_url": "",
    "executor.max_retry": 3,
    "executor.retry_interval": timedelta(seconds=5),
    "executor.max_backoff": timedelta(seconds=60),
    "executor.ga_callback_timeout": timedelta(minutes=30),
    "executor.stop_timeout": timedelta(seconds=35),
    "http.max_idle": 200,
    "http.per_host": 50,
    "callback.signing_keys": (),
    "callback.allow_hosts": (),
    "callback.headers": {},
    "callback.ca_file": "",
    "identity.user": "local",
    "identity.role": "user",
    "log.format": "auto",
    "log.level": "info",
    "server.host": "127.0.0.1",
    "server.port": 8350,
    "server.allowed_hosts": (),
    "server.allowed_origins": (),
    "server.ignore_arguments": (),
    "server.open_metrics": False,
    "server.tokens": (),
    "server.jwt.secret_file": "",
    "server.jwt.public_key_file": "",
    "server.jwt.issuer": "",
    "server.jwt.audience": "",
    "misfire.cap": 10,
    "overlap.default": "allow",
    "quota.tasks_per_user": 1000,
    "quota.min_interval": timedelta(seconds=60),
    "quota.nested_creates": "warn",
    "retention.executions_days": 90,
    "retention.tasks_days": 90,
    "retention.batch_runs_days": 7,
    "batch.slots": 10,
    "batch.grpc_health_port": 13007,
    "batch.caller": "crontask",
    "batch.owners": {},
    "batch.jobs": {},
}


@pytest.fixture
def load_with(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


@pytest.mark.requirement("X-CONF")
def test_every_setting_has_the_agreed_default(load_with: Loader) -> None:
    settings = load_with().settings
    assert {key: value_of(settings, key) for key in DEFAULTS} == DEFAULTS
    assert {key for key, _ in specs()} == DEFAULTS.keys() | {"store.url"}
    assert value_of(settings, "store.url").endswith("/.local/share/crontask/crontask.db")


@pytest.mark.requirement("X-CONF")
def test_every_setting_has_a_help_text_and_a_unit_where_it_is_a_number() -> None:
    for key, spec in specs():
        assert len(spec.help) > 20, key
        assert spec.help.endswith("."), key
        if spec.kind is Kind.INT:
            assert spec.low is not None, key
            assert spec.unit or spec.help, key


def test_the_reference_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run tools/gen_settings.py"


def test_the_default_store_is_a_file_in_the_users_data_folder() -> None:
    assert default_store_url({"HOME": "/h"}) == "sqlite:////h/.local/share/crontask/crontask.db"
    assert (
        default_store_url({"HOME": "/h", "XDG_DATA_HOME": "/d"})
        == "sqlite:////d/crontask/crontask.db"
    )


@pytest.mark.requirement("X-CONF")
def test_an_option_beats_the_environment_which_beats_the_file(load_with: Loader) -> None:
    toml = "[scheduler]\npoll_interval = '2s'\nclaim_batch = 20\nheartbeat = 1.5\n"
    env = {"CRONTASK_SCHEDULER_POLL_INTERVAL": "3s", "CRONTASK_SCHEDULER_CLAIM_BATCH": "30"}
    loaded = load_with(toml, env, scheduler__poll_interval="4s")
    scheduler = loaded.settings.scheduler
    assert scheduler.poll_interval == timedelta(seconds=4)
    assert scheduler.claim_batch == 30
    assert scheduler.heartbeat == timedelta(seconds=1.5)
    assert loaded.origins["scheduler.poll_interval"] == "option"
    assert loaded.origins["scheduler.claim_batch"] == "CRONTASK_SCHEDULER_CLAIM_BATCH"
    assert loaded.origins["scheduler.heartbeat"] == str(loaded.file)
    assert loaded.origins["scheduler.lease"] == "default"


@pytest.mark.requirement("X-CONF")
def test_the_file_is_the_named_one_else_the_one_here_else_the_users(tmp_path: Path) -> None:
    def write(path: Path, port: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[server]\nport = {port}\n")
        return path

    env = {"HOME": str(tmp_path)}
    here = tmp_path / "here"
    write(tmp_path / ".config/crontask/crontask.toml", 1001)
    assert load(environ=env, folder=here).settings.server.port == 1001
    write(tmp_path / "xdg/crontask/crontask.toml", 1002)
    env["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert load(environ=env, folder=here).settings.server.port == 1002
    write(here / "crontask.toml", 1003)
    assert load(environ=env, folder=here).settings.server.port == 1003
    env["CRONTASK_CONFIG"] = str(write(tmp_path / "env.toml", 1004))
    assert load(environ=env, folder=here).settings.server.port == 1004
    named = write(tmp_path / "named.toml", 1005)
    assert load(environ=env, folder=here, config=named).settings.server.port == 1005


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for source in ({"config": tmp_path / "no.toml"}, {"environ": {"CRONTASK_CONFIG": "no.toml"}}):
        arguments: dict[str, Any] = {"environ": {"HOME": str(tmp_path)}, **source}
        with pytest.raises(SettingsError, match="which is not a file"):
            load(folder=tmp_path, **arguments)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"[server\nport = 1", "cannot be read: .*line 1"),
        (b"\xff\xfe[", "cannot be read"),
        (b"[server]\nport = 1\nport = 2", "cannot be read"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_the_place(
    tmp_path: Path, text: bytes, what: str
) -> None:
    (tmp_path / "crontask.toml").write_bytes(text)
    with pytest.raises(SettingsError, match=what) as caught:
        load(environ={"HOME": str(tmp_path)}, folder=tmp_path)
    assert "crontask.toml" in caught.value.message


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "crontask.toml").write_bytes(b"\xef\xbb\xbf[server]\nport = 1\n")
    loaded = load(environ={"HOME": str(tmp_path)}, folder=tmp_path)
    assert loaded.settings.server.port == 1


@pytest.mark.requirement("X-CONF")
def test_unknown_names_are_errors_with_the_nearest_right_one(load_with: Loader) -> None:
    toml = "poll_interval = 1\n[scheduler]\npoll_intervall = '1s'\n[shceduler]\nlease = '9s'\n"
    env = {"CRONTASK_SCHEDULER_POL_INTERVAL": "1s", "CRONTASK_ZZZ": "1"}
    found = {p.field: p for p in load_with.faults(toml, env, server__prot="1")}
    assert found["scheduler.poll_intervall"].candidates[0] == "scheduler.poll_interval"
    assert "crontask.toml" in found["scheduler.poll_intervall"].message
    assert found["poll_interval"].candidates[0] == "scheduler.poll_interval"
    assert found["shceduler"].field == "shceduler"
    assert (
        found["CRONTASK_SCHEDULER_POL_INTERVAL"].candidates[0] == "CRONTASK_SCHEDULER_POLL_INTERVAL"
    )
    assert found["CRONTASK_ZZZ"].hint == "`crontask config` lists them all"
    assert found["server.prot"].candidates[0] == "server.port"
    assert len(found) == 6


@pytest.mark.requirement("X-CONF")
def test_all_faults_are_told_at_once(load_with: Loader) -> None:
    env = {"CRONTASK_SERVER_PORT": "x", "CRONTASK_LOG_LEVEL": "loud"}
    with pytest.raises(SettingsError) as caught:
        load_with("[scheduler]\nlease = '20s'\ntimezone = 'Asia/Shangai'\n", env)
    assert [p.field for p in caught.value.problems] == [
        "scheduler.timezone",
        "log.level",
        "server.port",
        "scheduler.lease",
    ]
    text = str(caught.value)
    assert text.startswith("4 settings are wrong:\n  CONFIG_INVALID scheduler.timezone: ")
    assert "Asia/Shanghai" in text
    assert "(from CRONTASK_LOG_LEVEL)" in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("2d", 172_800), ("45", 45),
        ("0.5", 0.5), (" 1.5h ", 5400),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    spec = Spec(kind=Kind.DURATION, help="")
    assert read(spec, text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5 minutes", "-1s", "1s1h", "abc", "nan", "1,5s"])
def test_what_is_not_a_duration_is_refused_with_an_example_that_works(
    load_with: Loader, text: str
) -> None:
    (problem,) = load_with.faults(env={"CRONTASK_SCHEDULER_SWEEP_INTERVAL": text})
    assert problem.field == "scheduler.sweep_interval"
    assert read(Spec(kind=Kind.DURATION, help=""), problem.example) == timedelta(minutes=90)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3000)))
def test_a_shown_duration_reads_back_as_itself(span: timedelta) -> None:
    assert read(Spec(kind=Kind.DURATION, help=""), show_duration(span)) == span


@pytest.mark.parametrize(
    ("key", "text", "example"),
    [
        ("server.port", "65536", "0"),
        ("server.port", "-1", "0"),
        ("executor.max_retry", "21", "0"),
        ("executor.retry_interval", "50ms", "100ms"),
        ("scheduler.claim_batch", "0", "1"),
        ("executor.concurrency", "1e3", "1"),
        ("executor.http_client", "requests", "aiohttp"),
        ("redis.lock", "maybe", "auto"),
        ("identity.role", "admin", "user"),
        ("server.open_metrics", "perhaps", "true"),
        ("quota.nested_creates", "allow", "warn"),
    ],
)
def test_a_value_out_of_range_is_refused_with_one_inside(
    load_with: Loader, key: str, text: str, example: str
) -> None:
    (problem,) = load_with.faults(env={env_name(key): text})
    assert (problem.field, problem.example) == (key, example)
    assert value_of(load_with(env={env_name(key): example}).settings, key) is not None


def test_toml_values_of_the_wrong_kind_are_refused(load_with: Loader) -> None:
    toml = (
        "log = 5\n[server]\nport = true\nallowed_hosts = 'a.example, b.example'\nhost = 1\n"
        "[callback]\nallow_hosts = [1]\nheaders = ['x']\n[batch]\njobs = ['a']\n"
    )
    found = [p.field for p in load_with.faults(toml)]
    assert found == [
        "log", "server.port", "server.host", "callback.allow_hosts", "callback.headers",
        "batch.jobs",
    ]  # fmt: skip


def test_lists_and_tables_can_be_text_with_commas(load_with: Loader) -> None:
    env = {
        "CRONTASK_CALLBACK_ALLOW_HOSTS": "agent.example.com, 10.0.0.0/8,",
        "CRONTASK_CALLBACK_HEADERS": "X-Team: a, Authorization: Bearer b",
        "CRONTASK_SERVER_OPEN_METRICS": "yes",
        "CRONTASK_REDIS_LOCK": "OFF",
    }
    settings = load_with(env=env).settings
    assert settings.callback.allow_hosts == ("agent.example.com", "10.0.0.0/8")
    assert settings.callback.headers == {"X-Team": "a", "Authorization": "Bearer b"}
    assert settings.server.open_metrics is True
    assert settings.redis.lock == "off"


@pytest.mark.requirement("X-CONF")
def test_a_lease_must_outlast_the_longest_call(load_with: Loader) -> None:
    (problem,) = load_with.faults(scheduler__lease="35s")
    assert problem.field == "scheduler.lease"
    assert load_with(scheduler__lease="35.001s")
    assert load_with(scheduler__lease=problem.example)


def test_a_node_timeout_must_outlast_three_heartbeats(load_with: Loader) -> None:
    (problem,) = load_with.faults(scheduler__node_timeout="6s")
    assert problem.field == "scheduler.node_timeout"
    assert load_with(scheduler__node_timeout="6.001s")
    assert load_with(scheduler__node_timeout=problem.example)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("store.url", "postgresql://h/db"),
        ("store.url", "mysql+asyncmy://u:p@h"),
        ("store.url", "mysql+asyncmy://u:12#3@h/db"),
        ("store.url", "sqlite://relative.db"),
        ("store.url", "mysql+asyncmy://u:p@h:port/db"),
        ("store.url", ""),
        ("redis.url", "http://h"),
        ("executor.default_callback_url", "ftp://h/x"),
        ("executor.default_callback_url", "http://u:p@h/x"),
        ("executor.default_callback_url", "agent:8000"),
        ("server.allowed_hosts", "https://a.example"),
        ("server.allowed_origins", "a.example"),
        ("callback.allow_hosts", "10.0.0.0/99"),
        ("callback.headers", "Host: evil"),
        ("callback.headers", "no colon"),
        ("callback.signing_keys", "whsec_!"),
        ("identity.user", ""),
        ("redis.lock", "on"),
        ("server.jwt.secret_file", "/run/secrets/jwt"),
        ("server.jwt.issuer", "https://id.example.com"),
    ],
)
def test_a_value_that_cannot_work_is_refused_at_start(
    load_with: Loader, key: str, text: str
) -> None:
    found = load_with.faults(env={env_name(key): text})
    group = key.rpartition(".")[0]
    assert all(p.field.startswith(group) for p in found)


def test_a_check_does_not_blame_the_default_of_a_value_that_could_not_be_read(
    load_with: Loader,
) -> None:
    env = {"CRONTASK_SCHEDULER_LEASE": "20s", "CRONTASK_EXECUTOR_CALLBACK_TIMEOUT": "five"}
    (problem,) = load_with.faults(env=env)
    assert problem.field == "executor.callback_timeout"


@pytest.mark.requirement("X-CONF")
def test_config_shows_each_value_its_origin_and_default(load_with: Loader) -> None:
    loaded = load_with(env={"CRONTASK_SCHEDULER_LEASE": "90s"})
    rows = {row.key: row for row in describe(loaded.settings, loaded.origins)}
    lease = rows["scheduler.lease"]
    assert (lease.value, lease.origin, lease.default) == ("1m30s", "CRONTASK_SCHEDULER_LEASE", "1m")
    assert rows["redis.url"][1:4] == ("none", "default", "none")
    assert rows["scheduler.node_id"].value == "host:pid:random"
    assert rows["server.open_metrics"].value == "false"
    assert list(rows) == [key for key, _ in specs()]


def test_variables_kubernetes_sets_for_a_service_of_our_name_are_left_alone(
    load_with: Loader,
) -> None:
    env = {
        "CRONTASK_SERVICE_HOST": "10.0.0.1",
        "CRONTASK_SERVICE_PORT": "8350",
        "CRONTASK_SERVICE_PORT_HTTP": "8350",
        "CRONTASK_PORT": "tcp://10.0.0.1:8350",
        "CRONTASK_PORT_8350_TCP": "tcp://10.0.0.1:8350",
        "CRONTASK_PORT_8350_TCP_ADDR": "10.0.0.1",
        "CRONTASK_SERVER_SERVICE_HOST": "10.0.0.2",
        "CRONTASK_SERVER_PORT": "tcp://10.0.0.2:8350",
    }
    assert load_with(env=env).settings.server.port == 8350
    env["CRONTASK_SERVER_PORT"] = "9000"
    assert load_with(env=env).settings.server.port == 9000
    env["CRONTASK_SERVICE_HOSTS"] = "x"
    assert [p.field for p in load_with.faults(env=env)] == ["CRONTASK_SERVICE_HOSTS"]


def test_rules_and_client_options_carry_the_settings(load_with: Loader) -> None:
    assert load_with().settings.rules() == Rules()
    settings = load_with(
        executor__retry_interval="250ms",
        executor__default_callback_url="http://127.0.0.1:9/x",
        overlap__default="skip",
        callback__allow_hosts="agent.example.com",
        misfire__cap="3",
        http__per_host="7",
    ).settings
    rules = settings.rules()
    assert (rules.retry_interval_ms, rules.overlap, rules.misfire_cap) == (
        250,
        OverlapPolicy.SKIP,
        3,
    )
    assert rules.allow_hosts == ("agent.example.com",)
    options = settings.client_options()
    assert options.default_callback_url == rules.default_callback_url == "http://127.0.0.1:9/x"
    assert (options.per_host, options.concurrency, options.ca_file) == (7, 50, None)


def test_settings_cannot_be_changed_in_place() -> None:
    settings = Settings()
    with pytest.raises(AttributeError):
        settings.server.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.callback.headers["x"] = "y"  # type: ignore[index]
