"""Tests that the request of a line is found, wherever its input has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.lines.requests import find_place, read_request
from jobs import files
from jobs.errors import ServiceError
from jobs.states import InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File, InputSegment
from tests.jobs.batches import control
from tests.jobs.batches.answered_lines import run_to_end

Run = Callable[..., Batch]
Make = Callable[..., Any]


def request_of(session: Session, storage: Storage, batch: Batch, line_no: int) -> Any:
    place = find_place(session, batch, line_no)
    assert place is not None
    content = read_request(storage, place, line_no)
    return orjson.loads(content) if isinstance(content, bytes) else content


def test_a_request_is_read_from_its_chunk_while_a_batch_runs(session: Session, storage: Storage, run: Run) -> None:
    batch = run(10)
    assert [request_of(session, storage, batch, number)["custom_id"] for number in (0, 3, 4, 9)] == [
        *("a0", "a3", "a4", "a9")
    ]
    place = find_place(session, batch, 9)
    assert place is not None
    assert place.first_line == 8, "the chunk's, not the file's"


def test_blank_and_invalid_lines_count(session: Session, storage: Storage, run: Run, request_line: Make) -> None:
    lines = [request_line("a0"), "", '{"custom_id": "bad"}', "", request_line("a4")]
    batch = run(lines, invalid_lines=InvalidLines.SKIP)
    assert request_of(session, storage, batch, 4)["custom_id"] == "a4"
    assert request_of(session, storage, batch, 2) == {"custom_id": "bad"}


def test_a_request_is_found_after_the_chunks_are_gone(session: Session, storage: Storage, run: Run) -> None:
    batch = run(10)
    run_to_end(session, batch)
    control.finalise(session, storage, batch.id)
    session.refresh(batch)
    session.execute(text("DELETE FROM chunk"))
    assert request_of(session, storage, batch, 9)["custom_id"] == "a9"


def test_a_deleted_input_has_no_requests_after_the_end(session: Session, storage: Storage, run: Run) -> None:
    batch = run(2)
    run_to_end(session, batch)
    control.finalise(session, storage, batch.id)
    session.refresh(batch)
    files.delete_file(session, batch.tenant_id, batch.input_file_id, by="key")
    assert find_place(session, batch, 1) is None


def test_a_request_that_is_too_long_is_not_read(
    session: Session, storage: Storage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = run(2)
    monkeypatch.setattr("features.lines.requests.MAX_LINE_BYTES", 20)
    assert request_of(session, storage, batch, 1) == "too_long"


def test_a_request_that_is_far_from_a_known_line_is_not_read(
    session: Session, storage: Storage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = run(10)
    run_to_end(session, batch)
    control.finalise(session, storage, batch.id)
    session.refresh(batch)
    size = session.get_one(File, batch.input_file_id).size_bytes
    monkeypatch.setattr("features.lines.requests._MOST_BYTES", size // 2)
    monkeypatch.setattr("features.lines.requests._PIECE_BYTES", 50)
    assert request_of(session, storage, batch, 9)["custom_id"] == "a9", "its chunk is near"
    session.execute(text("DELETE FROM chunk"))
    assert request_of(session, storage, batch, 1)["custom_id"] == "a1"
    assert request_of(session, storage, batch, 9) == "too_far"
    monkeypatch.setattr("features.lines.requests._MOST_BYTES", size)
    assert request_of(session, storage, batch, 9)["custom_id"] == "a9"


def test_lines_of_a_segment_are_read_from_it_and_then_from_the_joined_input(
    session: Session, storage: Storage, run: Run, request_line: Make
) -> None:
    batch = run([request_line(f"a{number}") for number in range(3)] + [""], is_growing=True)
    key = files.new_object_key(batch.tenant_id)
    added = "\n".join(request_line(f"a{number}") for number in range(3, 6)).encode() + b"\n"
    storage.put(key, added)
    session.add(InputSegment(batch_id=batch.id, first_line=3, object_key=key, size_bytes=len(added)))
    session.commit()
    assert [request_of(session, storage, batch, number)["custom_id"] for number in (2, 3, 5)] == ["a2", "a3", "a5"]
    file = session.get_one(File, batch.input_file_id)
    storage.put(file.object_key, b"".join(storage.iter_chunks(file.object_key)) + added)
    batch.state = "completed"
    session.commit()
    assert [request_of(session, storage, batch, number)["custom_id"] for number in (2, 3, 5)] == ["a2", "a3", "a5"]


def test_a_lost_input_is_an_error_of_the_service(session: Session, storage: Storage, run: Run) -> None:
    batch = run(2)
    storage.delete(session.get_one(File, batch.input_file_id).object_key)
    with pytest.raises(ServiceError):
        request_of(session, storage, batch, 1)
