"""Tests of the API while its object store is missing, is another site, or is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, sessions
from lab.s3_server import Mood, S3Server

CONTENT = b"0123456789"


@pytest.fixture
def client_of(database_url: str) -> Iterator[Callable[[str], httpx.Client]]:
    """Return a function that makes a client with a tenant's key for the API at a URL."""
    engine = connect(database_url)
    with sessions(engine).begin() as session:
        key = create_key(session, create_tenant(session, "acme").id)[1]
    clients: list[httpx.Client] = []

    def make(url: str) -> httpx.Client:
        clients.append(httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    engine.dispose()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def http(
    root: Path, database_url: str, serve: Callable[..., str], client_of: Callable[[str], httpx.Client]
) -> httpx.Client:
    return client_of(serve(database_url=database_url, storage_url=root.as_uri()))


def post_file(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/files", files={"purpose": (None, "batch"), "file": ("a.jsonl", CONTENT)})


def wait_for(http: httpx.Client, status: int, **body: Any) -> None:
    for _ in range(300):
        answer = http.get("/readyz")
        if answer.status_code == status and body.items() <= answer.json().items():
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"/readyz never answered {status} {body}")


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def samples(http: httpx.Client) -> dict[str, float]:
    lines = [line.split() for line in http.get("/metrics").text.splitlines() if line.startswith("tokenmill_storage")]
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize("leaves_folder", [True, False])
def test_a_folder_that_is_unmounted_for_a_while_costs_no_file(
    http: httpx.Client, root: Path, *, leaves_folder: bool
) -> None:
    file_id = post_file(http).json()["id"]
    assert samples(http) == {"tokenmill_storage_up": 1, "tokenmill_storage_full": 0}
    aside = root.with_name("unmounted")
    root.rename(aside)
    if leaves_folder:
        root.mkdir()
    wait_for(http, 503)
    assert error_of(post_file(http)) == (503, "service_unavailable")
    assert error_of(http.get(f"/v1/files/{file_id}/content")) == (503, "service_unavailable")
    assert http.get(f"/v1/files/{file_id}").status_code == 200, "what needs no object goes on"
    assert samples(http)["tokenmill_storage_up"] == 0
    if leaves_folder:
        assert list(root.rglob("*")) == []
        root.rmdir()
    assert not root.exists()
    aside.rename(root)
    wait_for(http, 200, storage="ok")
    assert http.get(f"/v1/files/{file_id}/content").content == CONTENT
    assert post_file(http).status_code == 200


@pytest.mark.parametrize("mood", [Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.OTHER_SITE, Mood.FORBID])
def test_a_bucket_that_is_gone_or_another_site_for_a_while_costs_no_file(
    database_url: str, serve: Callable[..., str], client_of: Callable[[str], httpx.Client], s3: S3Server, mood: Mood
) -> None:
    http = client_of(serve(database_url=database_url, storage_url=s3.url, storage_timeout_seconds=5))
    file_id = post_file(http).json()["id"]
    s3.trouble(mood)
    wait_for(http, 503)
    assert error_of(post_file(http)) == (503, "service_unavailable")
    assert error_of(http.get(f"/v1/files/{file_id}/content")) == (503, "service_unavailable")
    s3.recover()
    wait_for(http, 200)
    assert http.get(f"/v1/files/{file_id}/content").content == CONTENT


def test_an_api_that_starts_before_its_store_is_mounted_stores_nothing_until_it_is(
    root: Path, database_url: str, serve: Callable[..., str], client_of: Callable[[str], httpx.Client]
) -> None:
    engine = connect(database_url)
    with sessions(engine).begin() as session:
        session.execute(text("INSERT INTO store_marker (marker, written_at) VALUES ('database_1', now())"))
    engine.dispose()
    http = client_of(serve(database_url=database_url, storage_url=root.as_uri()))
    assert http.get("/readyz").status_code == 503
    assert error_of(post_file(http)) == (503, "service_unavailable")
    assert not root.exists()
    root.mkdir()
    (root / ".database").write_text("database_1")
    wait_for(http, 200)
    assert post_file(http).status_code == 200


def test_a_full_store_is_said_to_be_and_what_needs_no_room_goes_on(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id, other_id = (post_file(http).json()["id"] for _ in range(2))
    with monkeypatch.context() as patched:
        patched.setattr("jobs.storage.object_writer.obstore.put", _refuse)
        assert error_of(post_file(http)) == (503, "storage_full")
        wait_for(http, 200, storage="full")
        assert samples(http) == {"tokenmill_storage_up": 1, "tokenmill_storage_full": 1}
        assert http.get(f"/v1/files/{file_id}/content").content == CONTENT
        assert http.delete(f"/v1/files/{other_id}").json()["deleted"]
    assert post_file(http).status_code == 200
    wait_for(http, 200, storage="ok")


def _refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
