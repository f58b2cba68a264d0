"""Tests of the API's log: one JSON object per line, written by the real role in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from openai import OpenAI
from sqlalchemy.orm import Session

from cli.embedded.sockets import free_port
from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect
from tests.api.waiting import wait_until_alive

ROOT = Path(__file__).resolve().parents[2]


class Answer(Protocol):
    """The interface that the clients' answers share."""

    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A running `tokenmill api`, a key of its one tenant, and its log."""

    url: str
    key: str
    key_id: str
    tenant_id: str
    log: Path

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries so far; a line that is not a JSON object fails the test."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def entry_of(self, answer: Answer) -> dict[str, Any]:
        """Return the entry of a request, which is written after its answer."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for entry in self.entries():
                if entry.get("request_id") == answer.headers["x-request-id"]:
                    return entry
            time.sleep(0.01)
        raise AssertionError(f"no entry for {answer.headers['x-request-id']} in\n{self.log.read_text()}")


@pytest.fixture(scope="module")
def role(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory, quick_commands: Path
) -> Iterator[Role]:
    folder, port, database_url = tmp_path_factory.mktemp("role"), free_port(), new_database()
    engine = connect(database_url)
    with Session(engine) as session, session.begin():
        tenant_id = create_tenant(session, "team").id
        key, secret = create_key(session, tenant_id)
        key_id = key.id
    engine.dispose()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")} | {
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_STORAGE_URL": (folder / "objects").as_uri(),
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "api.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [quick_commands / "python", "-m", "cli.main", "api", "--port", str(port)],
            stdout=output, stderr=output, env=environment, cwd=ROOT,
        ) as process,
    ):  # fmt: skip
        try:
            wait_until_alive(f"http://127.0.0.1:{port}", process, log)
            yield Role(url=f"http://127.0.0.1:{port}", key=secret, key_id=key_id, tenant_id=tenant_id, log=log)
        finally:
            process.terminate()


def test_a_request_is_one_json_line_that_says_who_asked_for_what_and_how_it_went(role: Role) -> None:
    headers = {"Authorization": f"Bearer {role.key}"}
    answer = httpx.get(f"{role.url}/v1/files?limit=2", headers=headers)
    entry = role.entry_of(answer)
    assert entry.pop("time").endswith("Z")
    assert entry.pop("ms") > 0
    assert entry.pop("peer").startswith("127.0.0.1:")
    assert entry == {
        "level": "INFO",
        "role": "api",
        "event": "request answered",
        "request_id": answer.headers["x-request-id"],
        "tenant_id": role.tenant_id,
        "key_id": role.key_id,
        "method": "GET",
        "path": "/v1/files",
        "route": "/v1/files",
        "status": 200,
        "request_bytes": 0,
        "response_bytes": len(answer.content),
    }


def test_uploads_too_tell_their_tenant_and_a_deletion_is_an_event_of_its_own(role: Role) -> None:
    with OpenAI(base_url=f"{role.url}/v1", api_key=role.key, max_retries=0) as client:
        sent = client.files.with_raw_response.create(file=("a.jsonl", b"the content"), purpose="user_data")
        deleted = client.files.with_raw_response.delete(json.loads(sent.content)["id"])
    upload, deletion = role.entry_of(sent.http_response), role.entry_of(deleted.http_response)
    assert (upload["tenant_id"], upload["key_id"]) == (role.tenant_id, role.key_id)
    assert upload["request_bytes"] > len(b"the content")
    assert (deletion["event"], deletion["tenant_id"]) == ("object deleted", role.tenant_id)
    assert deletion["path"] == f"/v1/files/{json.loads(sent.content)['id']}"
    assert "the content" not in role.log.read_text()


@pytest.mark.parametrize(
    ("authorization", "reason", "hint"),
    [
        (None, "missing_api_key", None),
        ("Basic hunter2hunter2hunter2hunter2hunter2hunter2hunter2", "invalid_api_key", None),
        ("Bearer tm-hunter2", "invalid_api_key", None),
        ("Bearer tm-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGhunter2", "invalid_api_key", "tm-abcdefg"),
    ],
)
def test_a_failed_sign_in_is_written_without_the_secret(
    role: Role, authorization: str | None, reason: str, hint: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    entry = role.entry_of(httpx.get(f"{role.url}/v1/models?api_key=hunter2", headers=headers))
    assert (entry["event"], entry["level"], entry["status"]) == ("sign-in failed", "WARNING", 401)
    assert (entry["reason"], entry["key_hint"]) == (reason, hint)
    assert (entry["tenant_id"], entry["key_id"]) == (None, None)
    assert "hunter2" not in role.log.read_text()
    assert role.key not in role.log.read_text()


def test_a_key_in_a_path_is_written_as_lists_show_it(role: Role) -> None:
    answer = httpx.delete(f"{role.url}/v1/admin/keys/{role.key}", headers={"Authorization": f"Bearer {role.key}"})
    assert role.entry_of(answer)["path"] == f"/v1/admin/keys/{role.key[:10]}…"
    assert role.key not in role.log.read_text()


def test_a_flood_of_strangers_does_not_fill_the_log(role: Role) -> None:
    before = len(role.entries())
    with httpx.Client(base_url=role.url) as stranger, ThreadPoolExecutor(4) as several:
        for _ in several.map(stranger.get, ["/v1/models", "/no" + "w" * 5000] * 300):
            pass
    answer = httpx.get(f"{role.url}/v1/models", headers={"Authorization": f"Bearer {role.key}"})
    assert role.entry_of(answer)["status"] == 200, "a tenant's requests are written all the same"
    written = role.entries()[before:]
    assert len(written) < 300
    assert max(len(json.dumps(entry)) for entry in written) < 1000


def test_probes_are_not_written_and_the_servers_own_words_are_json_too(role: Role) -> None:
    answers = [httpx.get(f"{role.url}{path}") for path in ("/healthz", "/readyz", "/metrics")]
    role.entry_of(httpx.get(f"{role.url}/v1/models", headers={"Authorization": f"Bearer {role.key}"}))
    ids = {entry.get("request_id") for entry in role.entries()}
    assert ids.isdisjoint(answer.headers["x-request-id"] for answer in answers)
    assert any("Uvicorn running" in entry["event"] for entry in role.entries())
