"""Options of the clients: wrong ones are told at start, secrets are never shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crontask_adapters.client_options import ClientOptions
from crontask_core.errors import ConfigError


@pytest.mark.requirement("A6.4")
def test_the_defaults_are_those_of_the_rules() -> None:
    options = ClientOptions()
    assert timedelta(seconds=30) == options.callback_timeout
    assert (50, 200, 50) == (options.concurrency, options.max_idle, options.per_host)
    assert ((), {}, "") == (
        options.allow_hosts,
        dict(options.headers),
        options.default_callback_url,
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"callback_timeout": timedelta(0)}, "executor.callback_timeout"),
        ({"concurrency": 0}, "executor.concurrency"),
        ({"per_host": 0}, "http.per_host"),
        ({"max_idle": -1}, "http.max_idle"),
        ({"headers": {"X-A": "s3cret\r\nX-B: 1"}}, "callback.headers"),
        ({"headers": {"X A": "s3cret"}}, "callback.headers"),
        ({"headers": {"X-A": "s3crét"}}, "callback.headers"),
        ({"headers": {"Content-Type": "s3cret"}}, "callback.headers"),
        ({"headers": {"Webhook-ID": "s3cret"}}, "callback.headers"),
        ({"signing_keys": ("whsec_s3cret!",)}, "callback.signing_keys"),
        ({"signing_keys": ("whsec_",)}, "callback.signing_keys"),
        ({"signing_keys": ("whsec_czNjcmV0czNjcmV0",)}, "callback.signing_keys"),
        ({"signing_keys": ("s3cré" * 9,)}, "callback.signing_keys"),
        ({"allow_hosts": ("*.example",)}, "callback.allow_hosts"),
        ({"default_callback_url": "ftp://a.b"}, "executor.default_callback_url"),
        ({"default_callback_url": "http://u:s3cret@a.b"}, "executor.default_callback_url"),
    ],
)
def test_a_wrong_option_names_its_setting_and_shows_no_secret(
    given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientOptions(**given)

    assert field == caught.value.field
    assert "s3cr" not in repr(caught.value.as_dict())


def test_secrets_do_not_show_in_a_print() -> None:
    options = ClientOptions(
        headers={"Authorization": "Bearer s3cret"},
        signing_keys=("whsec_" + "czNjcmV0" * 4,),
        default_callback_url="http://agent.example/x?token=s3cret",
    )
    assert "s3cret" not in repr(options)
    assert "czNjcmV0" not in repr(options)


def test_headers_cannot_be_changed_from_outside() -> None:
    given = {"X-A": "1"}
    options = ClientOptions(headers=given)
    given["X-A"] = "2"
    assert {"X-A": "1"} == dict(options.headers)
