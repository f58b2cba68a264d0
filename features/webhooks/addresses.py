"""The addresses that webhooks may be sent to: public ones, and networks that the operator allows. Pure functions.

A tenant sets the URL, and requests come from inside the operator's network: OWASP's "server-side request forgery".
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from jobs.errors import InputError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL = 2000
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_COMPATIBLE = IPv6Network("::/96")  # the same, deprecated by RFC 4291
_SETTING = "TOKENMILL_WEBHOOK_NETWORKS"


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Tell whether an address is public, or in one of the networks."""
    target = _target(address)
    if any(target.version == network.version and target in network for network in networks):
        return True
    is_site_local = isinstance(target, IPv6Address) and target.is_site_local
    return target.is_global and not target.is_multicast and not target.is_reserved and not is_site_local


def check_url(url: str, networks: Sequence[Network]) -> None:
    """Raise InputError unless a URL is allowed for a webhook; host names are resolved at each request."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused(url, f"it cannot be parsed ({error})", "Give one such as https://example.com/hook") from None
    host = parts.hostname
    if not host or port == 0 or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise _refused(url, "it is not a complete URL", f"Give one of up to {MAX_URL:,} ASCII characters")
    if parts.scheme not in _schemes(networks):
        raise _refused(url, "it does not begin with https://", _wish(networks))
    _check_parts(url, parts)
    address = _literal(host)
    is_local = host == "localhost" or host.endswith(".localhost")
    if (address is not None and not is_allowed(address, networks)) or (is_local and not networks):
        raise _refused(url, "it leads into a private network", _wish(networks))


def _check_parts(url: str, parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise _refused("…", "it holds a user name or password", "Leave them out: requests are signed")
    if parts.fragment:
        raise _refused(url, "it has a fragment", "Leave out what follows the #")


def _schemes(networks: Sequence[Network]) -> tuple[str, ...]:
    """Return the allowed schemes: only https, unless requests may stay inside allowed networks."""
    return ("https", "http") if networks else ("https",)


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _target(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, if it does, as packets go there."""
    if isinstance(address, IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and (address in _NAT64 or (address in _COMPATIBLE and int(address) > 1)):
        embedded = IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or address


def _wish(networks: Sequence[Network]) -> str:
    also = f" or in {', '.join(map(str, networks))}" if networks else ""
    return f"Give an https:// URL on a public address{also}; your operator allows networks with {_SETTING}"


def _refused(url: str, what: str, wish: str) -> InputError:
    return InputError(f"url is {url[:200]!r}: {what}. {wish}.", param="url", code="invalid_value")
