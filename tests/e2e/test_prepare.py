"""Tests that a stack has no process for reading documents until the first one waits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cli.embedded.note import running_stack_of
from jobs.accounts.tenants import find_tenant
from jobs.database import connect, sessions
from jobs.storage import Storage
from tests.all_settings import Settings
from tests.e2e.builders import until
from tests.workers.preparing.builders import Library

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_stack_starts_who_reads_documents_with_the_first_of_them(stack: Any, request: pytest.FixtureRequest) -> None:
    assert stack.role("prepare") is None
    note = running_stack_of(Path(stack.data_dir))
    assert note is not None
    engine = connect(note.environment["TOKENMILL_DATABASE_URL"])
    request.addfinalizer(engine.dispose)
    maker = sessions(engine)
    with maker() as session:
        tenant = find_tenant(session, "default")
    storage = Storage(note.environment["TOKENMILL_STORAGE_URL"])
    library = Library(sessions=maker, storage=storage, settings=Settings(), tenant=tenant)
    batch_id = library.read({"a.txt": b"text", "b.pdf": b"%PDF-1.4 broken"})
    done = f"SELECT num_completed, num_failed FROM batch WHERE id = '{batch_id}' AND state = 'completed'"
    assert until(lambda: stack.query(done), stack) == [(1, 1)]
    assert [body["num_characters"] for body in library.bodies(batch_id) if "sha256" in body] == [4]
    # It reports itself at its next heartbeat.
    shown = until(
        lambda: next((said for said in [status_of(stack)] if re.search(r"documents\t[^\t]*\t0\t0\t", said)), None),
        stack,
    )
    assert any(line.startswith("prepare\trunning") for line in shown.splitlines()), shown
    assert stack.audit().returncode == 0


def status_of(stack: Any) -> str:
    return str(stack.run("status", "--data-dir", str(stack.data_dir)).stdout)
