"""Which addresses a callback may go to: pure decisions, no look-up, no I/O (DESIGN 6).

An entry of ``callback.allow_hosts`` is a host name (exact), an address or a CIDR block: what it
names is exempt from the address check. The entry ``*`` admits every host, and the address check
then decides: only public addresses pass. Without an entry no task may have a URL of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import SplitResult, urlsplit, urlunsplit

import attrs

from crontask_core.errors import ConfigError, InvalidInput

__all__ = [
    "ANY_HOST",
    "AllowList",
    "Target",
    "address_refusal",
    "addresses_refusal",
    "check_callback_url",
    "legacy_ipv4",
    "parse_target",
]

ANY_HOST = "*"
URL_LIMIT = 512

_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")

# What is not public, by the registries of special-purpose addresses; own lists, because what the
# standard library calls private or global has changed between releases of Python.
_CLOSED_V4 = tuple(
    map(
        IPv4Network,
        [
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # a cloud's metadata service on a public address
        ],
    )
)  # fmt: skip
_OPEN_V6 = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    map(IPv6Network, ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"])
)  # protocol assignments with Teredo, documentation, 6to4, documentation
_NAT64 = IPv6Network("64:ff9b::/96")


@attrs.frozen
class AllowList:
    """``callback.allow_hosts``, read: names in lower case, blocks, and whether any host goes."""

    names: frozenset[str] = frozenset()
    blocks: tuple[_Network, ...] = ()
    any_host: bool = False

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowList:
        """Raises ConfigError for an entry that is neither a name, an address, a CIDR nor ``*``."""
        return _parse_allow_list(tuple(entries))

    def covers(self, address: _Address) -> bool:
        """Whether a block holds this address; IPv4 inside IPv6 (``::ffff:``) counts as IPv4."""
        plain = _unmapped(address)
        return any(plain.version == b.version and plain in b for b in self.blocks)

    def lists(self, host: str) -> bool:
        """Whether this host, as it stands in a URL, is exempt from the address check."""
        literal = _literal(host)
        return self.covers(literal) if literal else host in self.names


@attrs.frozen
class Target:
    """Where a URL goes: ``host`` in lower case, without brackets and trailing dot; ``url`` the
    same in one spelling and without fragment, so that no other parser reads another host."""

    scheme: str
    host: str
    port: int
    url: str


@lru_cache(maxsize=64)
def _parse_allow_list(entries: tuple[str, ...]) -> AllowList:
    names, blocks = set(), []
    for entry in entries:
        text = entry.strip().lower().rstrip(".")
        if text == ANY_HOST:
            continue
        try:
            blocks.append(ip_network(text.removeprefix("[").removesuffix("]")))
        except ValueError:
            if not _NAME.fullmatch(text) or legacy_ipv4(text) is not None or len(text) > 253:
                raise _bad_entry(entry) from None
            names.add(text)
    return AllowList(frozenset(names), tuple(blocks), ANY_HOST in (e.strip() for e in entries))


def _bad_entry(entry: str) -> ConfigError:
    return ConfigError(
        f"{entry!r:.80} is neither a host name, an address nor a CIDR block",
        field="callback.allow_hosts",
        received=entry,
        hint="list each host by its exact name (no scheme, port or pattern), or a block such as "
        "10.1.0.0/16 with no host bits set",
        example="agent.internal",
    )


def check_callback_url(url: str, allow_hosts: Sequence[str]) -> None:
    """Refuse a task's own callback URL that may never be called (DESIGN 6).

    http or https, at most 512 characters of printable ASCII, no credentials, a valid port, and a
    host that ``allow_hosts`` admits. Names are looked up only when connecting, so a URL that
    passes may still be refused then. Raises InvalidInput ``CALLBACK_REFUSED``.
    """
    allow = AllowList.parse(allow_hosts)
    target = parse_target(url)
    if allow.lists(target.host):
        return
    if not allow.any_host:
        raise _refused(
            f"the host {target.host!r:.80} is not in callback.allow_hosts",
            url,
            hint="leave callback_url out to call the agent of this installation, or ask the "
            "operator to list the host",
            example=_example(allow),
        )
    literal = _literal(target.host)
    reason = address_refusal(literal, allow) if literal else _local_name(target.host)
    if reason:
        raise _refused(reason, url, hint="give an address that is public")


def parse_target(url: str) -> Target:
    """Where ``url`` goes, whatever the allow-list says. Raises InvalidInput ``CALLBACK_REFUSED``
    for anything but a plain http(s) URL; the message never holds the URL's credentials."""
    if len(url) > URL_LIMIT:
        raise _refused(f"the URL has {len(url)} characters, the limit is {URL_LIMIT}")
    # Parsers disagree about these characters, and what is checked must be what is called.
    if not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
        raise _refused("only printable ASCII without blanks and backslashes may be in the URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("the URL has no valid host and port") from None
    if parts.scheme not in ("http", "https"):
        raise _refused(f"the scheme {parts.scheme!r:.20} is not http or https")
    if "@" in parts.netloc:
        raise _refused("the URL holds credentials", hint="leave user and password out of it")
    if port == 0:
        raise _refused("port 0 cannot be called", url)
    host = _host(parts, url)
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    plain = urlunsplit((parts.scheme, place, parts.path or "/", parts.query, ""))
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), plain)


def _host(parts: SplitResult, url: str) -> str:
    host = (parts.hostname or "").removesuffix(".")
    if _literal(host) is not None:
        return host
    meant = legacy_ipv4(host)
    if meant is not None:
        raise _refused(f"{host!r:.40} is another spelling of {meant}", url, hint=f"write {meant}")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise _refused("the URL has no valid host name", hint="write a foreign name as xn--...")
    return host


def _refused(message: str, url: str = "", *, hint: str = "", example: str = "") -> InvalidInput:
    return InvalidInput(
        message,
        code="CALLBACK_REFUSED",
        field="callback_url",
        received=url,
        hint=hint or "give a plain http or https URL",
        example=example,
    )


def _example(allow: AllowList) -> str:
    return f"http://{min(allow.names)}/v1/task/execute" if allow.names else ""


def addresses_refusal(host: str, addresses: Sequence[str], allow: AllowList) -> str:
    """Why ``host`` may not be called at the addresses it resolves to; "" when it may.

    One closed address refuses the whole set: which of them is called must not matter.
    """
    for text in addresses:
        address = _literal(text)
        if address is None:
            return f"{host} resolves to {text!r:.60}, which is not an address"
        reason = address_refusal(address, allow)
        if reason:
            return reason if text == host else f"{host} resolves to {text}: {reason}"
    return ""


def address_refusal(address: _Address, allow: AllowList) -> str:
    """Why this address may not be called; "" when it may: listed as a block, or public."""
    if allow.covers(address):
        return ""
    plain = _unmapped(address)
    if plain in _NAT64 and isinstance(plain, IPv6Address):
        plain = IPv4Address(int(plain) & 0xFFFFFFFF)
    return "" if _public(plain) else f"the address {address} is not public"


def _public(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _CLOSED_V4)
    if address.scope_id is not None or address not in _OPEN_V6:
        return False
    return not any(address in block for block in _CLOSED_V6)


def _unmapped(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _literal(host: str) -> _Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _local_name(host: str) -> str:
    local = host == "localhost" or host.endswith(".localhost")
    return f"{host} is this machine itself" if local else ""


def legacy_ipv4(host: str) -> IPv4Address | None:
    """The address that C libraries read in old spellings: ``2130706433``, ``0x7f.1``, ``0177.1``.

    None when the host does not end in a number. A number that fits no address answers 0.0.0.0:
    it must not pass for a name.

    >>> legacy_ipv4("2130706433")
    IPv4Address('127.0.0.1')
    """
    parts = host.lower().split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    try:
        *heads, tail = [_number(part) for part in parts]
        room = 4 - len(heads)
        if room < 1 or max(heads, default=0) > 255 or tail >= 256**room:
            return IPv4Address(0)
    except ValueError:
        return IPv4Address(0)
    value = sum(part << 8 * (3 - place) for place, part in enumerate(heads))
    return IPv4Address(value + tail)


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if len(text) > 1 and text.startswith("0") else 10)
