"""Which addresses and URLs a callback may have (DESIGN 6)."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from crontask_adapters.address_guard import (
    AllowList,
    address_refusal,
    addresses_refusal,
    check_callback_url,
    legacy_ipv4,
    parse_target,
)
from crontask_core.errors import ConfigError, InvalidInput

ANY = AllowList.parse(["*"])


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.5", "100.64.0.1", "100.100.100.200", "127.0.0.1",
        "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8",
        "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255",
        "198.51.100.7", "203.0.113.5", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255", "168.63.129.16",
        "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.5",
        "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
        "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1",
        "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1",
        "ff02::1", "2606:4700::1111%eth0",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert address_refusal(ip_address(address), ANY).endswith("is not public")


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1",
        "172.32.0.1", "192.0.1.1", "198.17.255.255", "223.255.255.255", "::ffff:8.8.8.8",
        "2606:4700::1111", "2400:3200::1", "64:ff9b::808:808",
    ],
)  # fmt: skip
def test_a_public_address_passes(address: str) -> None:
    assert "" == address_refusal(ip_address(address), ANY)


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("10.1.2.3", "10.1.0.0/16"),
        ("::ffff:10.1.2.3", "10.1.0.0/16"),
        ("127.0.0.1", "127.0.0.1"),
        ("fd00::7", "fd00::/8"),
        ("::1", "[::1]"),
    ],
)
def test_a_listed_block_is_exempt(address: str, block: str) -> None:
    assert "" == address_refusal(ip_address(address), AllowList.parse([block]))


def test_a_listed_block_does_not_admit_its_neighbours() -> None:
    allow = AllowList.parse(["10.1.0.0/16"])
    assert "the address 10.2.0.1 is not public" == address_refusal(ip_address("10.2.0.1"), allow)


def test_one_closed_address_refuses_the_whole_set() -> None:
    found = ["93.184.216.34", "10.0.0.5"]
    text = "a.example resolves to 10.0.0.5: the address 10.0.0.5 is not public"
    assert text == addresses_refusal("a.example", found, ANY)
    assert text == addresses_refusal("a.example", found[::-1], ANY)
    assert "" == addresses_refusal("a.example", found[:1], ANY)
    assert "is not an address" in addresses_refusal("a.example", ["a.example"], ANY)


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("0x", "0.0.0.0"),
        ("10.0.0.05", "10.0.0.5"),
        ("10.257", "10.0.1.1"),
        ("4294967296", "0.0.0.0"),
        ("256.1.1.1", "0.0.0.0"),
        ("1.2.3.4.5", "0.0.0.0"),
        ("099.1.1.1", "0.0.0.0"),
        ("agent.7", "0.0.0.0"),
    ],
)
def test_a_host_that_ends_in_a_number_is_read_as_c_libraries_do(host: str, meant: str) -> None:
    assert ip_address(meant) == legacy_ipv4(host)


@pytest.mark.parametrize("host", ["agent", "7.agent", "a1", "0x7f.example", "1e1", "xn--p1ai"])
def test_a_host_that_does_not_end_in_a_number_is_a_name(host: str) -> None:
    assert legacy_ipv4(host) is None


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "allow"),
    [
        ("http://agent.internal/v1/task/execute", ["agent.internal"]),
        ("https://AGENT.Internal:8443/x?y=z", ["Agent.INTERNAL"]),
        ("http://agent.internal./x", ["agent.internal."]),
        ("http://my_agent:8000", ["my_agent"]),
        ("http://localhost:8000/x", ["localhost"]),
        ("http://10.1.2.3:8000/x", ["10.1.0.0/16"]),
        ("http://[::1]:8000/v1/task/execute", ["::1"]),
        ("http://[::ffff:10.1.2.3]/x", ["10.1.0.0/16"]),
        ("https://agent.example/x", ["*"]),
        ("https://93.184.216.34/x", ["*"]),
        ("http://10.1.2.3/x", ["*", "10.1.0.0/16"]),
        ("http://a.example/" + "x" * 495, ["*"]),
    ],
)
def test_a_url_whose_host_is_admitted_passes(url: str, allow: list[str]) -> None:
    check_callback_url(url, allow)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://agent.internal/x", "the host 'agent.internal' is not in callback.allow_hosts"),
        ("http://sub.agent.example/x", "the host 'sub.agent.example' is not in"),
        ("http://agent.example.evil.test/x", "is not in callback.allow_hosts"),
        ("http://evilagent.example/x", "is not in callback.allow_hosts"),
        ("http://10.2.0.1/x", "the host '10.2.0.1' is not in callback.allow_hosts"),
        ("http://[::1]/x", "the host '::1' is not in callback.allow_hosts"),
        ("http://2886795265/x", "'2886795265' is another spelling of 172.17.0.1"),
        ("http://0x0a.1.2.3/x", "'0x0a.1.2.3' is another spelling of 10.1.2.3"),
        ("http://012.1.2.3/x", "'012.1.2.3' is another spelling of 10.1.2.3"),
        ("file:///etc/passwd", "the scheme 'file' is not http or https"),
        ("gopher://agent.example/x", "the scheme 'gopher' is not http or https"),
        ("//agent.example/x", "the scheme '' is not http or https"),
        ("agent.example/x", "the scheme '' is not http or https"),
        ("", "the scheme '' is not http or https"),
        ("http://user:secret@agent.example/x", "the URL holds credentials"),
        ("http://@agent.example/x", "the URL holds credentials"),
        ("http://agent.example@evil.test/x", "the URL holds credentials"),
        ("http://agent.example/" + "x" * 492, "the URL has 513 characters, the limit is 512"),
        ("http://ágent.example/x", "only printable ASCII"),
        ("http://agent.example/推送", "only printable ASCII"),
        ("http://agent.example/a b", "only printable ASCII"),
        ("http://agent.example\t.evil.test/x", "only printable ASCII"),
        ("http://agent.example/\r\nX-Evil: 1", "only printable ASCII"),
        ("http://evil.test\\@agent.example/x", "only printable ASCII"),
        ("http://agent.example:0/x", "port 0 cannot be called"),
        ("http://agent.example:65536/x", "the URL has no valid host and port"),
        ("http://agent.example:80a/x", "the URL has no valid host and port"),
        ("http://[::1/x", "the URL has no valid host and port"),
        ("http:///x", "the URL has no valid host name"),
        ("http://:80/x", "the URL has no valid host name"),
        ("http://agent.example../x", "the URL has no valid host name"),
        ("http://agent%2eexample/x", "the URL has no valid host name"),
        ("http://%6c%6f%63alhost/x", "the URL has no valid host name"),
        ("http://" + "a" * 254 + "/x", "the URL has no valid host name"),
    ],
)
def test_any_other_url_is_refused_with_the_reason(url: str, what: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_callback_url(url, ["agent.example", "10.1.0.0/16"])

    assert ("CALLBACK_REFUSED", "callback_url") == (caught.value.code, caught.value.field)
    assert what in caught.value.message
    assert "secret" not in repr(caught.value.as_dict())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.0.0.5", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]",
        "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "100.64.0.1", "192.0.0.8",
        "localhost", "LOCALHOST", "localhost.", "a.localhost", "2130706433", "0x7f000001", "127.1",
        "0177.0.0.1", "127.0.0.1.", "0",
    ],
)  # fmt: skip
def test_where_any_host_goes_this_machine_and_private_addresses_do_not(host: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_callback_url(f"http://{host}/x", ["*"])

    assert "CALLBACK_REFUSED" == caught.value.code


def test_without_an_entry_no_task_has_a_url_of_its_own() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_callback_url("https://agent.example/x", [])

    assert caught.value.hint.startswith("leave callback_url out")
    assert "" == caught.value.example


def test_the_example_in_a_refusal_itself_works() -> None:
    allow = ["zeta.example", "agent.example", "10.0.0.0/8"]
    with pytest.raises(InvalidInput) as caught:
        check_callback_url("https://evil.test/x", allow)

    assert "http://agent.example/v1/task/execute" == caught.value.example
    check_callback_url(caught.value.example, allow)


def test_a_target_has_one_spelling() -> None:
    target = parse_target("HTTPS://Agent.Example.:8443/a%2Fb?c=d#e")
    assert ("https", "agent.example", 8443) == (target.scheme, target.host, target.port)
    assert "https://agent.example:8443/a%2Fb?c=d" == target.url
    assert "http://[::1]/" == parse_target("http://[::1]").url
    assert (80, 443) == (parse_target("http://a.b").port, parse_target("https://a.b").port)


@pytest.mark.parametrize(
    "entry",
    ["", "*.example", "http://agent.example", "agent.example:80", "10.0.0.1/8", "10.0.0.0/33",
     "127.1", "user@host", "a b", "agent..example", "ágent"],
)  # fmt: skip
def test_an_entry_that_is_no_name_address_or_block_is_an_error_at_start(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AllowList.parse([entry])

    assert "callback.allow_hosts" == caught.value.field
    AllowList.parse([caught.value.example or "agent.internal"])
