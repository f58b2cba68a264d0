from __future__ import annotations

from collections import Counter

import pytest

from features.documents.settings import DocumentSettings
from jobs.errors import InputError
from jobs.settings import Settings, all_settings, load_settings
from tests import all_settings as typed
from tests.jobs.configuration_page import settings_fields


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


def test_settings_of_the_queue_and_of_features_have_names_of_their_own() -> None:
    names = [name for name, _ in settings_fields()]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert {f"TOKENMILL_{name.upper()}" for name in all_settings().model_fields} == set(names)


def test_the_class_that_tests_use_has_the_settings_that_roles_read() -> None:
    assert typed.Settings.model_fields.keys() == all_settings().model_fields.keys()


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("TOKENMILL_WEBHOOK_NETWORKS", "10.0.0.0/8,here", "IPv4 or IPv6 network"),
        ("TOKENMILL_TENANT_INDEXES", "-1", "greater than or equal to 0"),
        ("TOKENMILL_PREPARE_PROCESSES", "257", "less than or equal to 256"),
        ("TOKENMILL_READER_ISOLATION", "none", "'best' or 'required'"),
        ("TOKENMILL_RUN_TEMPLATE_SECONDS", "0", "greater than 0"),
    ],
)
def test_a_wrong_setting_of_a_feature_is_refused_with_its_name_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=f"{variable} is {value!r}.*{allowed}"):
        load_settings()


def test_settings_that_a_role_reads_are_those_of_every_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_TENANT_COLLECTIONS", "7")
    monkeypatch.setenv("TOKENMILL_CHUNK_LINES", "9")
    settings = load_settings().of(DocumentSettings)
    assert (settings.tenant_collections, settings.chunk_lines) == (7, 9)
