"""Tests of lines of batches that have ended: their index, its pages and searches, and what deletes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest
from sqlalchemy.orm import Session, sessionmaker

from features.lines import opening, searching
from features.lines.reader import FoundLine, LineFilter
from features.lines.stored import StoredLines
from jobs import deletions, files
from jobs.batches import deletion
from jobs.errors import GoneError, NotFoundError, ServiceError
from jobs.lines import line_index
from jobs.lines.line_index import TAIL
from jobs.retention import purging
from jobs.storage import Storage, store_owner
from jobs.tables import Batch, File
from tests.jobs.batches import control
from tests.jobs.batches.answered_lines import run_to_end

Run = Callable[..., Batch]
Ended = Callable[..., Batch]
FAILED = frozenset({2, 7, 11})
ALL = LineFilter()


@pytest.fixture
def ended(session: Session, storage: Storage, run: Run) -> Ended:
    """Return a function that runs a batch to its end, some lines failing."""

    def end(num_lines: int = 12, *, failing: frozenset[int] = FAILED, **options: Any) -> Batch:
        batch = run(num_lines)
        run_to_end(session, batch, failing=failing, **options)
        control.finalise(session, storage, batch.id)
        session.refresh(batch)
        return batch

    return end


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "BLOCK_LINES", 5)


def reader_of(session: Session, storage: Storage, batch: Batch) -> StoredLines:
    reader = opening.open_lines(session, None, storage, batch)  # type: ignore[arg-type]  # an ended one needs none
    assert isinstance(reader, StoredLines)
    return reader


def loaded(session: Session, storage: Storage, batch: Batch) -> StoredLines:
    reader = reader_of(session, storage, batch)
    assert reader.load()
    return reader


def index_key(session: Session, batch: Batch) -> str:
    file = session.get_one(File, batch.output_file_id or batch.error_file_id)
    return files.line_index_key(file.object_key)


def numbers(lines: Any) -> list[int]:
    return [line.line_no for line in lines]


def all_pages(reader: StoredLines, wanted: LineFilter, *, limit: int) -> list[FoundLine]:
    lines: list[FoundLine] = []
    first_line, has_more = 0, True
    while has_more:
        page = reader.page(wanted, first_line=first_line, limit=limit)
        assert len(page.lines) <= limit
        lines, first_line, has_more = [*lines, *page.lines], page.next_line, page.has_more
    return lines


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_give_every_line_once_and_whole(session: Session, storage: Storage, ended: Ended, limit: int) -> None:
    lines = all_pages(loaded(session, storage, ended()), ALL, limit=limit)
    assert numbers(lines) == list(range(12))
    assert all(line.is_whole and orjson.loads(line.content)["custom_id"] == f"a{line.line_no}" for line in lines)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (LineFilter(is_error=True), [2, 7, 11]),
        (LineFilter(is_error=False), [0, 1, 3, 4, 5, 6, 8, 9, 10]),
        (LineFilter(code="engine_failure"), [2, 7, 11]),
        (LineFilter(code="other"), []),
        (LineFilter(status_code=200), [0, 1, 3, 4, 5, 6, 8, 9, 10]),
        (LineFilter(status_code=400), []),
        (LineFilter(is_error=True, status_code=200), []),
    ],
)
def test_a_filter_gives_the_lines_that_meet_all_of_it(
    session: Session, storage: Storage, ended: Ended, wanted: LineFilter, found: list[int]
) -> None:
    reader = loaded(session, storage, ended())
    assert numbers(all_pages(reader, wanted, limit=2)) == found


def test_one_line_is_found_by_its_number(session: Session, storage: Storage, ended: Ended) -> None:
    reader = loaded(session, storage, ended())
    line = reader.find(7)
    assert line is not None
    assert (line.kind.is_error, line.kind.code) == (True, "engine_failure")
    assert orjson.loads(line.content)["custom_id"] == "a7"
    assert reader.find(12) is None


def test_a_batch_whose_lines_all_failed_has_its_index_beside_the_error_file(
    session: Session, storage: Storage, ended: Ended
) -> None:
    batch = ended(3, failing=frozenset(range(3)))
    assert batch.output_file_id is None
    assert numbers(all_pages(loaded(session, storage, batch), ALL, limit=10)) == [0, 1, 2]


def test_a_batch_without_results_has_no_lines(session: Session, storage: Storage, run: Run) -> None:
    batch = run(["not a request"])
    assert batch.state == "failed"
    assert loaded(session, storage, batch).page(ALL, first_line=0, limit=10).lines == []


# --- the index that is made later ------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [FAILED, frozenset(), frozenset(range(12))])
def test_a_lost_index_is_made_again_with_the_same_bytes(
    session: Session, storage: Storage, ended: Ended, failing: frozenset[int]
) -> None:
    batch = ended(failing=failing)
    key = index_key(session, batch)
    before = b"".join(storage.iter_chunks(key))
    storage.delete(key)
    reader = reader_of(session, storage, batch)
    assert not reader.load()
    reader.make_index()
    assert b"".join(storage.iter_chunks(key)) == before
    assert numbers(all_pages(reader, ALL, limit=5)) == list(range(12))


def test_an_index_of_another_format_counts_as_lost(session: Session, storage: Storage, ended: Ended) -> None:
    batch = ended()
    storage.put(index_key(session, batch), b"something else that is long enough")
    assert not reader_of(session, storage, batch).load()


@pytest.mark.parametrize("broken", ["directory", "size", "cut", "block"])
def test_a_broken_index_is_made_again(session: Session, storage: Storage, ended: Ended, *, broken: str) -> None:
    batch = ended()
    key = index_key(session, batch)
    whole = b"".join(storage.iter_chunks(key))
    size, form = TAIL.unpack(whole[-TAIL.size :])
    content = {
        "directory": whole[: -size - TAIL.size] + b"x" * size + whole[-TAIL.size :],
        "size": whole[: -TAIL.size] + TAIL.pack(2**60, form),
        "cut": whole[5:],
        "block": b"\xff" * 50 + whole[50:],
    }[broken]
    storage.put(key, content)
    reader = reader_of(session, storage, batch)
    if reader.load():
        with pytest.raises(ServiceError):
            reader.page(ALL, first_line=0, limit=10)
        assert not reader.load()
    reader.make_index()
    assert b"".join(storage.iter_chunks(key)) == whole
    assert numbers(all_pages(reader, ALL, limit=5)) == list(range(12))


def test_an_index_that_is_lost_while_it_is_made_is_an_error_of_the_service(
    session: Session, storage: Storage, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = ended()
    reader, size = reader_of(session, storage, batch), storage.size

    def lost(key: str) -> int:
        if key == index_key(session, batch):
            raise NotFoundError("there is no object")
        return size(key)

    monkeypatch.setattr(storage, "size", lost)
    with pytest.raises(ServiceError):
        reader.make_index()


def test_no_index_is_made_of_files_that_are_not_the_batchs(
    session: Session, storage: Storage, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.lines.making._MOST_BLANK", 100)
    batch, other = ended(), ended()
    theirs = session.get_one(File, other.output_file_id)
    ours = session.get_one(File, batch.output_file_id)
    storage.put(ours.object_key, b"".join(storage.iter_chunks(theirs.object_key)))
    with pytest.raises(ServiceError):
        reader_of(session, storage, batch).make_index()


def test_a_lost_result_file_is_an_error_of_the_service(session: Session, storage: Storage, ended: Ended) -> None:
    batch = ended()
    reader = loaded(session, storage, batch)
    storage.delete(session.get_one(File, batch.output_file_id).object_key)
    with pytest.raises(ServiceError):
        reader.page(ALL, first_line=0, limit=10)


# --- search ----------------------------------------------------------------------------------------------------------


def found(reader: StoredLines, text: str, wanted: LineFilter = ALL, *, first_line: int = 0, limit: int = 100) -> Any:
    parts = list(searching.search(reader, text, wanted, first_line=first_line, limit=limit))
    return numbers(line for part in parts for line in part.lines), parts[-1]


def test_a_search_finds_lines_by_the_text_of_their_values(session: Session, storage: Storage, ended: Ended) -> None:
    reader = loaded(session, storage, ended(padding='says "Grüße"\n'))
    assert found(reader, 'says "Grüße"\n')[0] == [0, 1, 3, 4, 5, 6, 8, 9, 10]
    assert found(reader, "a1")[0] == [1, 10, 11]
    assert found(reader, "a1", LineFilter(is_error=True))[0] == [11]
    assert found(reader, "a1", first_line=2)[0] == [10, 11]
    assert found(reader, "padding")[0] == [], "the name of a member"
    assert found(reader, "grüße")[0] == []


def test_a_search_ends_at_its_limit_and_goes_on_from_there(session: Session, storage: Storage, ended: Ended) -> None:
    reader = loaded(session, storage, ended())
    lines, end = found(reader, "a", limit=4)
    assert (lines, end.has_more, end.next_line) == ([0, 1, 2, 3], True, 4)
    lines, end = found(reader, "a", first_line=4, limit=8)
    assert (lines, end.has_more) == ([4, 5, 6, 7, 8, 9, 10, 11], False)


def test_a_search_counts_the_bytes_of_both_files(session: Session, storage: Storage, ended: Ended) -> None:
    batch = ended()
    sizes = [session.get_one(File, each).size_bytes for each in (batch.output_file_id, batch.error_file_id)]
    assert found(loaded(session, storage, batch), "zzz")[1].num_bytes == sum(sizes)


# --- what ends it ----------------------------------------------------------------------------------------------------


def test_an_index_is_deleted_with_its_batch(session: Session, storage: Storage, ended: Ended) -> None:
    batch = ended()
    key = index_key(session, batch)
    assert key in deletion.delete_batch(session, batch.tenant_id, batch.id, by="key")


def test_an_index_is_purged_with_its_output(
    session: Session, maker: sessionmaker[Session], storage: Storage, ended: Ended
) -> None:
    batch = ended()
    key = index_key(session, batch)
    assert batch.output_file_id is not None
    files.delete_file(session, batch.tenant_id, batch.output_file_id, by="key")
    session.commit()
    assert purging.purge_files(maker, storage) == 1
    assert not storage.exists(key)


def test_an_index_is_swept_once_no_file_has_its_object(
    session: Session, maker: sessionmaker[Session], storage: Storage, ended: Ended
) -> None:
    batch = ended()
    kept, leftover = index_key(session, batch), files.line_index_key(files.new_object_key(batch.tenant_id))
    storage.put(leftover, b"x")
    session.commit()
    store_owner.adopt(maker, storage)
    purging.sweep_objects(maker, storage, age=timedelta(0), unused=timedelta(days=1))
    assert (storage.exists(kept), storage.exists(leftover)) == (True, False)


@pytest.mark.parametrize(("column", "code"), [("output_file_id", "output"), ("error_file_id", "error")])
def test_lines_are_gone_with_either_file(
    session: Session, storage: Storage, ended: Ended, column: str, code: str
) -> None:
    batch = ended()
    files.delete_file(session, batch.tenant_id, getattr(batch, column), by=deletions.OPERATOR)
    with pytest.raises(GoneError) as caught:
        reader_of(session, storage, batch)
    assert caught.value.code == f"{code}_file_deleted"
