"""Tests of the API while its object store hangs: requests that need the store wait or get 503, others are served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import text

from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, sessions
from lab.s3_server import Mood, S3Server

THREADS = 40  # of the pool for all endpoints that are not coroutines
CONTENT = b"0123456789"
IDLE = "SELECT query FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"


@pytest.fixture
def url(s3: S3Server, database_url: str, serve: Callable[..., str]) -> str:
    """An API whose store hangs longer than any test waits."""
    return serve(
        database_url=database_url, storage_url=s3.url, storage_timeout_seconds=60, storage_retries=1,
        tenant_uploads=2 * THREADS, tenant_downloads=2 * THREADS,
    )  # fmt: skip


@pytest.fixture
def http(url: str, database_url: str) -> Iterator[httpx.Client]:
    engine = connect(database_url)
    with sessions(engine).begin() as session:
        key = create_key(session, create_tenant(session, "acme").id)[1]
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120, limits=limits) as client:
        yield client
    engine.dispose()


def post_file(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/files", files={"purpose": (None, "batch"), "file": ("a.jsonl", CONTENT)})


@pytest.fixture
def file_id(http: httpx.Client) -> str:
    return str(post_file(http).json()["id"])


@contextmanager
def calls(s3: S3Server, call: Callable[[], httpx.Response], *, count: int) -> Iterator[list[Future[httpx.Response]]]:
    """Send concurrent calls that the store keeps waiting; it answers again when the block ends."""
    with ThreadPoolExecutor(max_workers=count) as executor:
        try:
            yield [executor.submit(call) for _ in range(count)]
        finally:
            s3.recover()


def wait_until_no_transaction_idles(database_url: str) -> None:
    """A transaction idles for a moment between its statements; one that waits for the store would keep idling."""
    engine = connect(database_url)
    deadline = time.monotonic() + 120
    while True:
        with engine.connect() as connection:
            found = list(connection.execute(text(IDLE)).scalars())
        if not found:
            break
        assert time.monotonic() < deadline, found
    engine.dispose()


def test_downloads_that_hang_hold_up_nothing_but_themselves(
    http: httpx.Client, s3: S3Server, file_id: str, database_url: str
) -> None:
    s3.trouble(Mood.HANG, methods="GET")
    with calls(s3, lambda: http.get(f"/v1/files/{file_id}/content"), count=2 * THREADS) as downloads:
        s3.wait_for_hanging(10)
        assert http.get("/v1/batches").status_code == 200
        assert http.get(f"/v1/files/{file_id}").status_code == 200
        wait_until_no_transaction_idles(database_url)
    assert {download.result().content for download in downloads} == {CONTENT}


def test_uploads_that_hang_hold_up_nothing_but_themselves(http: httpx.Client, s3: S3Server, database_url: str) -> None:
    s3.trouble(Mood.HANG, methods="PUT")
    with calls(s3, lambda: post_file(http), count=2 * THREADS) as uploads:
        s3.wait_for_hanging(10)
        assert http.get("/v1/batches").status_code == 200
        wait_until_no_transaction_idles(database_url)
        for upload in uploads:
            upload.cancel()


def test_forms_of_several_files_leave_threads_for_other_uploads(http: httpx.Client, s3: S3Server) -> None:
    def post_form() -> httpx.Response:
        parts = [("files", (f"{number}.txt", CONTENT)) for number in range(3)]
        return http.post("/v1/files/several", data={"purpose": "user_data"}, files=parts)

    before = s3.num_requests("PUT")
    s3.trouble(Mood.HANG, methods="PUT")
    with calls(s3, post_form, count=THREADS) as forms, calls(s3, lambda: post_file(http), count=1) as uploads:
        s3.wait_for_hanging(3)
        assert http.get("/v1/batches").status_code == 200
        assert s3.num_requests("PUT") == before + 3
        for call in [*forms, *uploads]:
            call.cancel()


def test_deletions_that_hang_hold_up_nothing_but_themselves(http: httpx.Client, s3: S3Server) -> None:
    ids = [post_file(http).json()["id"] for _ in range(THREADS + 1)]
    s3.trouble(Mood.HANG, methods="POST DELETE")
    for file_id in ids:
        assert http.delete(f"/v1/files/{file_id}").json()["deleted"]
    s3.wait_for_hanging(10)
    assert http.get("/v1/batches").status_code == 200
    s3.recover()


def test_a_download_that_the_store_refuses_is_a_503(http: httpx.Client, s3: S3Server, file_id: str) -> None:
    s3.trouble(Mood.REFUSE, methods="GET")
    answer = http.get(f"/v1/files/{file_id}/content")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")


@pytest.mark.parametrize("mood", [Mood.REFUSE, Mood.HANG])
def test_readiness_tells_of_a_store_that_does_not_answer(http: httpx.Client, s3: S3Server, mood: Mood) -> None:
    assert http.get("/readyz").status_code == 200
    s3.trouble(mood)
    wait_for_status(http, 503)
    assert http.get("/v1/batches").status_code == 200, "what needs no object goes on"
    s3.recover()
    wait_for_status(http, 200)


def wait_for_status(http: httpx.Client, status: int) -> None:
    for _ in range(300):
        if http.get("/readyz").status_code == status:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"/readyz never answered {status}")
