"""Tests of answers that are in no document, and of documents without text: in records, tables and reviews."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.extraction.course.job import Passes
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.record_table import row_of, table_columns
from features.documents.tables import CollectionDocument, Extraction, Review
from jobs.storage import Storage
from jobs.tables import File
from tests.features.documents.answering import FLAKY, Answering
from tests.features.documents.builders import records_of

Run = Callable[[Extraction], Extraction]

PAPERS = {"a.txt": "vendor: Ash Ltd\ntotal: 12.50", "b.txt": f"vendor: Birch {FLAKY} Ltd\ntotal: 3.00"}
"""The second one's vendor is answered wrongly, unless it is asked again."""
ONCE = {"passes": Passes(again=False)}
OWN = ("document", "sha256", "error", "review", "score", "notes")


def table_of(session: Session, storage: Storage, extraction: Extraction) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert extraction.parquet_file_id is not None
    key = session.get_one(File, extraction.parquet_file_id).object_key
    found: list[dict[str, Any]] = parquet.read_table(io.BytesIO(b"".join(storage.iter_chunks(key)))).to_pylist()
    return found


def test_what_stands_nowhere_is_null(session: Session, storage: Storage, make_extraction: Any, run: Run) -> None:
    extraction = run(make_extraction(PAPERS, plan=ONCE))
    records = records_of(session, storage, extraction)
    assert [record["fields"]["vendor"] for record in records] == ["Ash Ltd", None]
    vendor = records[1]["evidence"][0]
    assert (vendor["value"], vendor["answer"], vendor["note"]) == (None, "nowhere to be found", "not_in_document")


def test_a_row_of_the_table_says_what_to_look_at_and_what_stood_nowhere(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({**PAPERS, "blank.txt": " \n "}, plan=ONCE, parquet=True))
    rows = table_of(session, storage, extraction)
    assert list(rows[0]) == [*OWN, "vendor", "total"]
    assert [(row["review"], row["notes"], row["vendor"]) for row in rows] == [
        (False, None, "Ash Ltd"),
        (True, "vendor: not_in_document", None),
        (True, None, None),
    ]
    records = records_of(session, storage, extraction)
    assert [row["score"] for row in rows[:2]] == [min(each["score"] for each in one["evidence"]) for one in records[:2]]
    assert rows[2]["score"] is None
    assert rows[2]["error"].endswith("(no_text)")


def test_a_reviewer_sees_what_was_answered(session: Session, make_extraction: Any, run: Run) -> None:
    run(make_extraction(PAPERS, plan=ONCE))
    reviews = session.scalars(select(Review).where(Review.path == "vendor", Review.reason == "doubt")).all()
    assert [(one.evidence["value"], one.evidence["answer"]) for one in reviews] == [(None, "nowhere to be found")]


def test_a_document_without_text_fails_and_is_asked_nothing(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction({"a.txt": "\n \n"}))
    (record,) = records_of(session, storage, extraction)
    assert (record["status"], record["error"]["code"], record["fields"]) == ("failed", "no_text", None)
    assert answering.asked == []
    (row,) = session.scalars(select(CollectionDocument)).all()
    assert row.error is not None
    assert row.error["code"] == "no_text"


def evidence(path: str, **others: Any) -> dict[str, Any]:
    return {"path": path, "value": None, "score": 0.9, "review": False, **others}


def record(*found: dict[str, Any], **others: Any) -> dict[str, Any]:
    fields = {"review": "good", "Score": 7, "document": "contract", "notes": None, "total": None}
    known = {"document": "a.txt", "sha256": "0", "error": None, "notes": [], "fields": fields, "evidence": list(found)}
    return {**known, **others}


NAMED = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "review": {"type": "string"},
            "Score": {"type": "integer"},
            "document": {"type": "string"},
            "notes": {"type": "array", "items": {"type": "string"}},
            "total": {"type": "number"},
        },
    }
)


def test_fields_that_are_named_as_columns_of_the_table_have_columns_of_their_own() -> None:
    columns = table_columns(NAMED)
    named = ["fields.review", "fields.Score", "fields.document", "fields.notes", "total"]
    assert list(columns) == [*OWN, *named]
    assert len({name.casefold() for name in columns}) == len(columns)
    row = row_of(record(evidence("total")), columns)
    assert (row["review"], row["score"], row["document"]) == (False, 0.9, "a.txt")
    assert (row["fields.review"], row["fields.Score"], row["fields.document"]) == ("good", 7, "contract")


@pytest.mark.parametrize(
    ("given", "review", "score", "notes"),
    [
        (record(), False, None, None),
        (record(evidence("total", review=True), evidence("review", score=0.4)), True, 0.4, None),
        (record(evidence("total"), notes=["1 of 2 pages have no text"]), False, 0.9, "1 of 2 pages have no text"),
        (
            record(evidence("total", note="not_in_document", review=True), notes=["it was cut"]),
            True,
            0.9,
            "total: not_in_document; it was cut",
        ),
        (
            record(evidence("total", score=0.1, note="not_in_document", review=True, reviewed={"verdict": "accept"})),
            False,
            None,
            None,
        ),
        (record(error={"code": "no_text", "message": "it has none"}, fields=None), True, None, None),
    ],
    ids=["no_values", "least_score", "notes", "withheld", "decided", "failed"],
)
def test_a_row_tells_how_sure_its_record_is(
    given: dict[str, Any], review: bool, score: float | None, notes: str | None
) -> None:
    row = row_of(given, table_columns(NAMED))
    assert (row["review"], row["score"], row["notes"]) == (review, score, notes)
