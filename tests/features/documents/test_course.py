"""Tests of the course of an extraction: every document has its record, whatever happens to it and its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from features.documents.collections import documents
from features.documents.extraction.course.job import Passes
from features.documents.stages import stages_for
from features.documents.states import ExtractionState
from features.documents.tables import CollectionDocument, Extraction
from jobs.chunks import fleet
from jobs.storage import Storage
from jobs.tables import Batch, File
from tests.features.documents.answering import FLAKY, Answering
from tests.features.documents.builders import records_of
from tests.features.documents.papers import GOOD, PAPERS
from tests.flows.advancers import Extractions

Run = Callable[[Extraction], Extraction]


def test_every_document_has_a_record_in_its_order_with_its_fields_or_its_error(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction(PAPERS))
    assert extraction.state == ExtractionState.COMPLETED
    records = records_of(session, storage, extraction)
    assert [record["document"] for record in records] == list(PAPERS)
    assert [record["fields"] for record in records] == [
        {"vendor": "Ash Ltd", "total": "12.50"},
        {"vendor": f"Birch {FLAKY} Ltd", "total": "3.00"},
        None,
        None,
    ]
    assert [record["error"] and record["error"]["code"] for record in records] == [None, None, "empty", "failed"]
    assert [each["grounding"] for each in records[1]["evidence"]] == ["exact", "exact"]
    ids = session.scalars(select(CollectionDocument.id).order_by(CollectionDocument.number)).all()
    assert [record["document_id"] for record in records] == ids
    assert (extraction.num_done, extraction.failed_codes) == (2, {"empty": 1, "failed": 1})


def test_an_extraction_of_unreadable_documents_asks_nothing_and_is_complete(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction({"a.txt": "", "b.txt": ""}))
    assert (extraction.state, extraction.num_done, answering.asked) == (ExtractionState.COMPLETED, 0, [])
    assert {record["status"] for record in records_of(session, storage, extraction)} == {"failed"}


def test_each_stage_is_a_batch_that_its_owner_sees_and_pays(session: Session, make_extraction: Any, run: Run) -> None:
    extraction = run(make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"]}))
    batches = session.scalars(select(Batch).order_by(Batch.created_at, Batch.id)).all()
    assert [batch.request_metadata for batch in batches] == [
        {"extraction_id": extraction.id, "stage": stage} for stage in stages_for(Passes())
    ]
    assert [batch.input_tokens for batch in batches] == [0, 14, 0, 7, 0]
    assert {batch.api_key_id for batch in batches} == {"key_1"}
    assert {batch.priority for batch in batches} == {extraction.priority}


def test_what_was_read_is_noted_of_each_document(session: Session, make_extraction: Any, run: Run) -> None:
    extraction = run(make_extraction({"a.txt": GOOD, "b.txt": ""}))
    page = documents.list_documents(session, extraction.collection_id, after=None, limit=10)
    assert [(row.num_pages, row.num_characters, row.error and row.error["code"]) for row in page.data] == [
        (1, len(GOOD), None),
        (None, None, "empty"),
    ]


def test_a_collection_that_changes_meanwhile_changes_no_extraction_of_it(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions
) -> None:
    extraction = make_extraction({"a.txt": GOOD, "b.txt": GOOD})
    extractions.advance(extraction.id)
    session.execute(text("UPDATE collection_document SET deleted_at = now() WHERE name = 'a.txt'"))
    session.commit()
    run(extraction)
    assert [record["document"] for record in records_of(session, storage, extraction)] == ["a.txt", "b.txt"]


def test_a_document_whose_text_is_deleted_meanwhile_fails_alone(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    extractions: Extractions,
    answering: Answering,
) -> None:
    extraction = make_extraction({"a.txt": GOOD, "b.txt": "vendor: Other"})
    extractions.advance(extraction.id)
    answering.work_off()
    storage.delete(next(found.name for found in storage.iter_objects() if found.name.endswith(".doc")))
    run(extraction)
    codes = [record["error"] and record["error"]["code"] for record in records_of(session, storage, extraction)]
    assert sorted(codes, key=str) == [None, "not_asked"]


def test_a_table_has_the_fields_in_columns_and_a_row_for_each_document(
    session: Session, storage: Storage, make_extraction: Any, run: Run, tmp_path: Any
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    extraction = run(make_extraction(PAPERS, parquet=True))
    assert extraction.parquet_file_id is not None
    path = tmp_path / "fields.parquet"
    key = session.get_one(File, extraction.parquet_file_id).object_key
    path.write_bytes(b"".join(storage.iter_chunks(key)))
    table = parquet.read_table(path).to_pydict()
    assert table["vendor"] == ["Ash Ltd", f"Birch {FLAKY} Ltd", None, None]
    assert [error is None for error in table["error"]] == [True, True, False, False]


def test_a_document_longer_than_the_context_is_asked_by_the_passages_that_its_fields_need(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    fleet.register(session, worker_id="worker_1", model="m", max_chunks=1, max_model_len=2000)
    filler = "\n".join(f"nothing of interest in paragraph {number}" for number in range(3000))
    extraction = run(make_extraction({"long.txt": f"{filler}\n{GOOD}\n{filler}"}))
    (record,) = records_of(session, storage, extraction)
    assert record["fields"]["vendor"] == "Ash Ltd"
    assert record["evidence"][0]["spans"][0]["start"] == len(filler) + len("\nvendor: ")
    asked = session.scalars(select(Batch).where(Batch.endpoint == "/v1/chat/completions")).first()
    assert asked is not None
    assert session.get_one(File, asked.input_file_id).size_bytes < 10_000
