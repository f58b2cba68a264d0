from __future__ import annotations

from ipaddress import ip_address

import pytest

from features.webhooks.addresses import check_url, is_allowed
from jobs.errors import InputError
from jobs.settings import load_settings
from tests.all_settings import Settings

LOCAL = Settings(webhook_networks="127.0.0.0/8, 10.1.0.0/16,::1/128").allowed_networks


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(ip_address(address), ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1", "fc00::1", "fd12::1", "ff02::1",
        "2001:db8::1", "2002:7f00:1::1", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "::10.0.0.1", "fec0::1", "2001::1",
    ],
)  # fmt: skip
def test_private_addresses_are_refused_in_every_way_to_write_them(address: str) -> None:
    assert not is_allowed(ip_address(address), ())


def test_an_operator_allows_networks_and_no_others() -> None:
    allowed = ["127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "::1", "1.1.1.1"]
    assert [is_allowed(ip_address(address), LOCAL) for address in allowed] == [True] * 5
    assert not any(is_allowed(ip_address(address), LOCAL) for address in ("10.2.0.1", "169.254.169.254", "fd00::1"))


@pytest.mark.parametrize("url", ["https://example.com/hook?x=1", "https://1.1.1.1:8443/", "https://[2606:4700::1]/a"])
def test_https_urls_of_public_hosts_are_accepted(url: str) -> None:
    check_url(url, ())


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://example.com/", "does not begin with https://"),
        ("ftp://example.com/", "does not begin with https://"),
        ("example.com/hook", "not a complete URL"),
        ("https:///hook", "not a complete URL"),
        ("https://example.com:0/", "not a complete URL"),
        ("https://example.com:99999/", "cannot be parsed"),
        ("https://[::1/", "cannot be parsed"),
        ("https://exa mple.com/", "not a complete URL"),
        ("https://example.com/\x00", "not a complete URL"),
        ("https://bücher.example/", "not a complete URL"),
        ("https://" + "a" * 2000, "not a complete URL"),
        ("https://user:secret@example.com/", "user name or password"),
        ("https://example.com/#part", "has a fragment"),
        ("https://localhost/hook", "private network"),
        ("https://api.localhost/hook", "private network"),
        ("https://127.0.0.1/", "private network"),
        ("https://169.254.169.254/latest/meta-data", "private network"),
        ("https://[::ffff:10.0.0.1]/", "private network"),
    ],
)
def test_other_urls_are_refused_with_what_is_wrong_and_what_to_do(url: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        check_url(url, ())
    assert caught.value.param == "url"
    assert "secret" not in caught.value.message


def test_with_networks_plain_http_and_this_machine_are_accepted() -> None:
    for url in ("http://127.0.0.1:9000/hook", "http://localhost:9000/", "http://[::1]:9000/", "https://example.com/"):
        check_url(url, LOCAL)
    with pytest.raises(InputError, match=r"or in 127\.0\.0\.0/8, 10\.1\.0\.0/16"):
        check_url("http://192.168.0.1/", LOCAL)


def test_a_network_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_WEBHOOK_NETWORKS", "10.0.0.1/8")
    with pytest.raises(InputError, match=r"TOKENMILL_WEBHOOK_NETWORKS is '10\.0\.0\.1/8': .*has host bits set"):
        load_settings()
