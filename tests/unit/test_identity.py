"""Who calls, and whom they may act for."""

from __future__ import annotations

import hashlib

import pytest

from crontask_adapters.settings import IdentitySettings
from crontask_adapters.settings_fields import Token
from crontask_core.errors import CrontaskError, Forbidden, InvalidInput
from crontask_server.identity import USER_META, Caller, StaticTokens, by_settings, by_token, digest

USER = Caller(user="ann", scopes=frozenset({"read", "write", "report"}))
AGENT = Caller(scopes=frozenset({"read", "write", "report", "act_as"}), may_act=True)
META = {USER_META: "bob"}

pytestmark = pytest.mark.requirement("X-I1")


def test_a_user_acts_for_itself() -> None:
    assert "ann" == USER.acting_for(None, None)
    assert "ann" == USER.acting_for({}, "ann")


@pytest.mark.parametrize(("meta", "argument"), [(META, None), (None, "bob"), (META, "bob")])
def test_a_user_may_not_act_for_another(meta: dict[str, str] | None, argument: str | None) -> None:
    with pytest.raises(Forbidden) as caught:
        USER.acting_for(meta, argument)
    assert ("FORBIDDEN", "user_id") == (caught.value.code, caught.value.field)


def test_an_agent_acts_for_the_user_its_harness_names_then_the_argument_then_the_default() -> None:
    assert "bob" == AGENT.acting_for(META, None)
    assert "bob" == AGENT.acting_for(META, "bob")
    assert "cid" == AGENT.acting_for(None, "cid")
    with_default = Caller(may_act=True, default_user="dan")
    assert "dan" == with_default.acting_for(None, None)
    assert "bob" == with_default.acting_for(META, None)


def test_a_model_may_not_name_another_user_than_its_harness_does() -> None:
    with pytest.raises(Forbidden) as caught:
        AGENT.acting_for(META, "eve")
    assert "user_id" == caught.value.field


def test_an_agent_that_names_nobody_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        AGENT.acting_for(None, None)
    assert ("MISSING_ARGUMENT", "user_id") == (caught.value.code, caught.value.field)
    assert "josetian" == AGENT.acting_for(None, caught.value.example)


def test_a_harness_that_names_no_text_is_refused() -> None:
    with pytest.raises(InvalidInput):
        AGENT.acting_for({USER_META: 5}, None)


def test_each_scope_is_needed_and_admin_has_them_all() -> None:
    reader = Caller(user="ann", scopes=frozenset({"read"}))
    reader.need("read")
    with pytest.raises(Forbidden) as caught:
        reader.need("write")
    assert "this needs the scope write, and the token has read" == caught.value.message
    Caller(scopes=frozenset({"admin"})).need("write")


def test_an_agent_reports_for_anybody_and_a_user_only_for_itself() -> None:
    reporter = Caller(scopes=frozenset({"report"}))
    assert reporter.reporting_for(None, None) is None
    assert AGENT.reporting_for(None, None) is None
    assert "bob" == AGENT.reporting_for(META, None)
    assert "ann" == USER.reporting_for(None, None)
    with pytest.raises(Forbidden):
        USER.reporting_for(None, "bob")


def test_without_tokens_the_settings_say_who_calls() -> None:
    user = by_settings(IdentitySettings(user="ann", role="user"))()
    assert ("ann", False) == (user.acting_for(None, None), user.may_act)
    agent = by_settings(IdentitySettings(user="ann", role="agent"))()
    assert "ann" == agent.acting_for(None, None)
    assert "bob" == agent.acting_for(META, None)


def test_a_request_without_a_token_is_nobody() -> None:
    with pytest.raises(CrontaskError) as caught:
        by_token()
    assert "UNAUTHENTICATED" == caught.value.code


async def test_a_token_is_known_by_its_hash_and_not_kept() -> None:
    secret = "s3cret-token"
    assert hashlib.sha256(secret.encode()).hexdigest() == digest(secret)
    tokens = StaticTokens(
        [
            Token(name="ann-laptop", sha256=digest(secret), scopes=("read",), user="ann"),
            Token(name="ga", sha256=digest("ga"), scopes=("act_as",), default_user="dan"),
        ]
    )
    found = await tokens.verify_token(secret)
    assert found is not None
    assert ("ann-laptop", ["read"], "ann") == (found.client_id, found.scopes, found.subject)
    assert secret not in repr(found)
    agent = await tokens.verify_token("ga")
    assert agent is not None and agent.subject is None
    assert {"default_user": "dan"} == agent.claims
    for wrong in ("", "s3cret-toke", "s3cret-token ", digest(secret)):
        assert await tokens.verify_token(wrong) is None
