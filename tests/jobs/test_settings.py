from __future__ import annotations

import pytest

from jobs.errors import InputError
from jobs.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("lease", "heartbeat", "flush"), [("1", "2", "0.2"), ("20", "10", "0.2"), ("20", "2", "30"), ("6.5", "2", "0.2")]
)
def test_a_lease_that_could_end_between_its_extensions_is_refused(
    monkeypatch: pytest.MonkeyPatch, lease: str, heartbeat: str, flush: str
) -> None:
    monkeypatch.setenv("TOKENMILL_LEASE_SECONDS", lease)
    monkeypatch.setenv("TOKENMILL_HEARTBEAT_SECONDS", heartbeat)
    monkeypatch.setenv("TOKENMILL_FLUSH_SECONDS", flush)
    sentence = f"TOKENMILL_LEASE_SECONDS is {lease}.*TOKENMILL_HEARTBEAT_SECONDS {heartbeat}.*_FLUSH_SECONDS {flush}"
    with pytest.raises(InputError, match=sentence):
        load_settings()


def test_the_shortest_lease_that_is_allowed_is_the_one_that_the_refusal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_LEASE_SECONDS", "1")
    with pytest.raises(InputError, match=r"at least 6\.6 s"):
        load_settings()
    monkeypatch.setenv("TOKENMILL_LEASE_SECONDS", "6.6")
    assert load_settings().lease_seconds == 6.6


@pytest.mark.parametrize("name", ["TOKENMILL_RETENTION_DAYS", "TOKENMILL_DETAIL_DAYS"])
@pytest.mark.parametrize("days", ["0", "-1", "36501", "soon"])
def test_days_that_no_date_has_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, days: str) -> None:
    monkeypatch.setenv(name, days)
    with pytest.raises(InputError, match=f"{name} is {days!r}"):
        load_settings()


@pytest.mark.parametrize("variable", ["TOKENMILL_DATABASE_URL", "TOKENMILL_DATABASE_OWNER_URL", "TOKENMILL_REDIS_URL"])
def test_the_password_of_an_example_starts_no_role(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "scheme://tokenmill:change-me@server:1/0")
    with pytest.raises(InputError, match="'change-me', which everybody knows"):
        load_settings()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("redis://:secret@host:6379/3", "redis://:secret@host:6379/3"),
        ("redis+socket:///run/valkey.sock?virtual_host=2", "unix:///run/valkey.sock?db=2"),
    ],
)
def test_the_urls_that_celery_takes_are_understood(given: str, url: str) -> None:
    assert Settings(redis_url=given).redis_client_url == url
