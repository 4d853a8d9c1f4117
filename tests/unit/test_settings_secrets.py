"""Tokens are kept as digests, and no secret is shown anywhere."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from crontask_adapters.settings_fields import MASK, Kind, Spec, show
from crontask_adapters.settings_load import describe
from tests.settings_kit import Loader

DIGEST = hashlib.sha256(b"a token").hexdigest()


@pytest.fixture
def load_with(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


TOKENS = """
[[server.tokens]]
name = "ga"
sha256 = "%s"
scopes = ["read", "write", "report", "act_as"]
default_user = "josetian"
[[server.tokens]]
name = "me"
sha256 = "%s"
scopes = ["read"]
user = "josetian"
[[server.tokens]]
name = "reporter"
sha256 = "%s"
scopes = ["report"]
"""


@pytest.mark.requirement("X-I1")
def test_tokens_are_kept_as_digests_with_scopes_and_users(load_with: Loader) -> None:
    digests = (DIGEST.upper(), "1" * 64, "2" * 64)
    agent, user, reporter = load_with(TOKENS % digests).settings.server.tokens
    assert (agent.name, agent.sha256, agent.default_user) == ("ga", DIGEST, "josetian")
    assert agent.scopes == ("read", "write", "report", "act_as")
    assert (user.user, reporter.user) == ("josetian", "")


@pytest.mark.requirement("X-I1")
@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{name = 'a', sha256 = 'abc', scopes = ['read'], user = 'u'}", "64 hex"),
        ("{name = 'a', sha256 = '%s', scopes = ['root'], user = 'u'}", "no scope 'root'"),
        ("{name = 'a', sha256 = '%s', scopes = [], user = 'u'}", "no scopes"),
        ("{name = 'a', sha256 = '%s', scopes = ['read']}", "needs a user"),
        ("{name = 'a', sha256 = '%s', scopes = ['act_as'], user = 'u'}", "default_user, not user"),
        ("{name = 'a', sha256 = '%s', scopes = ['read'], default_user = 'u'}", "agent tokens"),
        ("{name = '', sha256 = '%s', scopes = ['report']}", "no name"),
        ("{name = 'a', scopes = ['read']}", "no sha256"),
        ("{name = 'a', sha256 = '%s', scopes = ['report'], token = 'x'}", "unknown key token"),
        ("{name = 'a', sha256 = 5, scopes = ['report']}", "are texts"),
        ("{name = 'a', sha256 = '%s', scopes = 'report'}", "list is expected"),
        ("'abc'", "not a table"),
    ],
)
def test_a_token_that_cannot_be_meant_is_refused(load_with: Loader, entry: str, what: str) -> None:
    entry = entry.replace("%s", DIGEST)
    (problem,) = load_with.faults(f"[server]\ntokens = [{entry}]\n")
    assert problem.field == "server.tokens"
    assert what in problem.message


def test_two_tokens_share_neither_name_nor_digest(load_with: Loader) -> None:
    found = load_with.faults(TOKENS.replace('"me"', '"ga"') % ("1" * 64, "2" * 64, "1" * 64))
    assert [p.message for p in found] == [
        "token 'ga': the name is used twice",
        "token 'reporter': the same sha256 stands under two names",
    ]


def test_tokens_cannot_come_from_the_environment(load_with: Loader) -> None:
    (problem,) = load_with.faults(env={"CRONTASK_SERVER_TOKENS": "secret-token"})
    assert "only be given in the TOML file" in problem.message
    assert "secret-token" not in problem.line()


def test_jwt_needs_one_key_and_an_audience(load_with: Loader) -> None:
    toml = "[server.jwt]\naudience = 'crontask'\npublic_key_file = 'k.pem'\n"
    assert load_with(toml).settings.server.jwt.public_key_file == "k.pem"
    (problem,) = load_with.faults(toml + "secret_file = 's'\n")
    assert problem.field == "server.jwt.secret_file"


@pytest.mark.requirement("X-CONF")
def test_secrets_are_shown_nowhere(load_with: Loader, caplog: pytest.LogCaptureFixture) -> None:
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"  # base64, so that it works as a key
    toml = f"""
    [store]
    url = "mysql+asyncmy://crontask:{secret}@h/db?ssl_key=/k"
    [redis]
    url = "redis://:{secret}@h/0"
    [callback]
    signing_keys = ["whsec_{secret}"]
    headers = {{ Authorization = "Bearer {secret}" }}
    [[server.tokens]]
    name = "me"
    sha256 = "{DIGEST}"
    scopes = ["report"]
    """
    loaded = load_with(toml)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s", loaded)
    rows = describe(loaded.settings, loaded.origins)
    for text in (repr(loaded), str(rows), caplog.text):
        assert secret not in text
        assert DIGEST not in text
    shown = {row.key: row.value for row in rows}
    assert shown["store.url"] == "mysql+asyncmy://crontask:***@h/db?ssl_key=***"
    assert shown["redis.url"] == "redis://:***@h/0"
    assert shown["callback.signing_keys"] == MASK
    assert shown["callback.headers"] == "Authorization: ***"
    assert shown["server.tokens"] == "me (report)"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cret@h/db", "mysql://u:s3#cret@h/db", "mysql://u:s3/cret@h/db",
        "mysql://u:s3@cret@h/db", "mysql://u:s3?cret@h/db", "redis://:s3cret@h/0",
        "mysql://u@h/db?password=s3cret&x=1", "mysql://h/db?x=1&auth_token=s3cret",
    ],
)  # fmt: skip
def test_a_password_is_masked_wherever_it_stands_in_a_url(url: str) -> None:
    shown = show(Spec(kind=Kind.URL, help=""), url)
    assert "cret" not in shown
    assert MASK in shown


@pytest.mark.parametrize(
    "url", ["sqlite:////var/x.db", "sqlite:///x.db", "http://a.example:80/x?y=1", "", "redis://h/0"]
)
def test_a_url_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert show(Spec(kind=Kind.URL, help=""), url) == url


def test_an_error_never_repeats_a_secret(load_with: Loader) -> None:
    env = {
        "CRONTASK_STORE_URL": "postgres://u:s3cret@h/db",
        "CRONTASK_REDIS_URL": "s3cret",
        "CRONTASK_CALLBACK_SIGNING_KEYS": "s3cret, whsec_s3cret",
        "CRONTASK_CALLBACK_HEADERS": "s3cret",
    }
    for problem in load_with.faults(env=env):
        assert "s3cret" not in problem.line() + str(problem.as_dict())
