"""JWT bearer tokens: what is taken, what is refused, and who they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from crontask_adapters.settings import JwtSettings
from crontask_core.errors import ConfigError
from crontask_server.jwt_tokens import JwtTokens

SECRET = "a shared secret of more than 32 characters, and as long as HS512 asks for"
FAR = 4_102_444_800
CLAIMS: dict[str, Any] = {"aud": "crontask", "exp": FAR, "sub": "ann", "scope": "read write x:y"}

pytestmark = pytest.mark.requirement("X-I1")


@pytest.fixture
def tokens(tmp_path: Path) -> JwtTokens:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return JwtTokens(JwtSettings(secret_file=str(file), audience="crontask", issuer="https://id"))


def signed(key: Any = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    claims = {"iss": "https://id", **CLAIMS, **changes}
    return jwt.encode({k: v for k, v in claims.items() if v is not None}, key, algorithm)


async def test_a_user_token_names_its_user_and_scopes(tokens: JwtTokens) -> None:
    found = await tokens.verify_token(signed())
    assert found is not None
    assert ("ann", ["read", "write"], "") == (found.subject, found.scopes, found.token)


async def test_an_agent_token_acts_for_nobody_by_itself(tokens: JwtTokens) -> None:
    found = await tokens.verify_token(signed(scope=None, scp=["act_as", "report"], sub="ga"))
    assert found is not None
    assert (None, ["act_as", "report"], "ga") == (found.subject, found.scopes, found.client_id)
    named = await tokens.verify_token(signed(scope="act_as", default_user="bob"))
    assert named is not None and {"default_user": "bob"} == named.claims


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1_000},
        {"exp": None},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"key": "another secret of more than 32 characters, which is not the right one at all"},
        {"algorithm": "HS512"},
    ],
)
async def test_a_token_that_is_not_ours_is_refused(
    tokens: JwtTokens, changes: dict[str, Any]
) -> None:
    assert await tokens.verify_token(signed(**changes)) is None


async def test_an_unsigned_token_and_no_token_at_all_are_refused(tokens: JwtTokens) -> None:
    unsigned = jwt.encode({"iss": "https://id", **CLAIMS}, None, "none")
    for text in (unsigned, "", "x.y.z", "nonsense"):
        assert await tokens.verify_token(text) is None


async def test_a_public_key_takes_its_own_tokens_and_none_signed_with_itself_as_a_secret(
    tmp_path: Path,
) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    file = tmp_path / "key.pem"
    file.write_bytes(pem)
    tokens = JwtTokens(JwtSettings(public_key_file=str(file), audience="crontask"))
    found = await tokens.verify_token(signed(private, "EdDSA"))
    assert found is not None and "ann" == found.subject
    forged = signed("x" * 40, "HS256")
    assert await tokens.verify_token(forged) is None


def test_a_key_file_that_is_missing_or_too_short_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        JwtTokens(JwtSettings(secret_file=str(tmp_path / "none"), audience="crontask"))
    assert "server.jwt.secret_file" == caught.value.field
    short = tmp_path / "short"
    short.write_text("secret")
    with pytest.raises(ConfigError):
        JwtTokens(JwtSettings(secret_file=str(short), audience="crontask"))
