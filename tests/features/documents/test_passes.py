"""Tests of further passes: their lines, their use in scores, and the same records as from `tokenmill extract`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents import lifecycle, stages
from features.documents.asking import require_askable
from features.documents.extraction.course.job import Passes
from features.documents.stages import STAGES, DocumentStage
from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from jobs.errors import TooLargeError
from jobs.storage import Storage
from jobs.tables import Batch
from tests.all_settings import Settings
from tests.features.documents.answering import ENDLESS, FLAKY, Answering
from tests.features.documents.builders import records_of
from tests.flows.advancers import Extractions

Run = Callable[[Extraction], Extraction]

ALL = Passes(second_reading=True, cover=True)
PAPERS = {
    "plain.txt": "vendor: Ash Ltd\ntotal: 12.50",
    "doubtful.txt": f"vendor: Birch {FLAKY} Ltd\ntotal: 3.00",
    "contradicted.txt": "vendor: Cedar Ltd\ntotal: 8.00\nnote: none\ntotal: 9.00",
    "crashing.txt": "CRASH\nvendor: Dogwood Ltd",
    "empty.txt": "",
}


def features(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {each["path"]: each["features"].get(name) for each in record["evidence"]}


def names_of(session: Session, extraction: Extraction) -> list[str]:
    return [stages.stage_of(stage) for stage in stages.stages_of(session, extraction.id)]


def compared(record: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a record that both runs share; for a failed one its code."""
    if record["error"] is not None:
        return {"document": record["document"], "code": record["error"]["code"]}
    return {name: value for name, value in record.items() if name != "document_id"}


def test_rounds_of_asking_again_come_before_covering(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    names = [f"field_{number}" for number in range(5)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    papers = {"endless.txt": "\n".join(f"{name}: {name[-1]} {ENDLESS}" for name in names), **PAPERS}
    papers |= {"plain.txt": "field_0: 7\nfield_1: 8"}
    extraction = run(make_extraction(papers, schema=schema, plan={"passes": ALL}))
    begun = stages.stages_of(session, extraction.id)
    assert [stage.number for stage in begun] == sorted({stage.number for stage in begun})
    assert names_of(session, extraction) == [
        *("read", "ask", "ground", "ask_again", "ground_again", "ask_again", "ground_again"),
        *("ask_again", "ground_again", "ask_covered", "ground_covered"),
    ]
    found = records_of(session, storage, extraction)
    assert found[0]["fields"] == {name: f"{name[-1]} {ENDLESS}" for name in names}
    assert set(features(found[0], "covered").values()) == {"nothing"}


def test_where_a_further_round_expires_the_records_are_those_of_the_round_before(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("a", "b", "c")}}
    content = f"a: 1 {ENDLESS}\nb: 2 {ENDLESS}\nc: 3 {ENDLESS}"
    extraction = make_extraction({"a.txt": content}, schema=schema, plan={"passes": Passes(cover=True)})
    for _stage in ("read", "ask", "ground", "ask_again", "ground_again"):
        extractions.advance(extraction.id)
        answering.work_off()
    extractions.advance(extraction.id)
    answering.expires_after = 0
    answering.work_off()
    run(extraction)
    assert "of stage ask_again is expired" in (extraction.reason or "")
    assert names_of(session, extraction)[-4:] == ["ask_again", "ground_again", "ask_covered", "ground_covered"]
    (record,) = records_of(session, storage, extraction)
    assert (record["status"], list(record["fields"].values()).count(None)) == ("done", 2)


def test_second_readings_are_lines_beside_the_first_and_speak_of_each_value(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction(PAPERS, plan={"passes": Passes(second_reading=True)}))
    found = records_of(session, storage, extraction)
    assert features(found[0], "agreement") == {"vendor": "agrees", "total": "agrees"}
    assert [record["usage"]["input_tokens"] for record in found] == [14, 21, 14, 0, 0]
    asked = session.scalars(select(Batch).where(Batch.endpoint == "/v1/chat/completions").order_by(Batch.id)).first()
    assert asked is not None
    assert (asked.num_requests, asked.num_completed, asked.input_tokens) == (8, 6, 42)
    first, second = (body["messages"][-1]["content"] for body in answering.asked[:2])
    shared = first[: first.index("</document>")]
    assert second.startswith(shared), "a prefix cache has the document when it is read another way"


def test_what_is_said_behind_covers_lowers_the_score_of_what_is_contradicted(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction(PAPERS, plan={"passes": Passes(cover=True)}))
    assert extraction.state == ExtractionState.COMPLETED
    assert names_of(session, extraction) == list(STAGES)
    lines = [stage.num_lines for stage in stages.stages_of(session, extraction.id)]
    assert lines == [5, 4, 3, 1, 1, 3, 3]
    plain, doubtful, contradicted, *_broken = records_of(session, storage, extraction)
    assert features(plain, "covered") == {"vendor": "nothing", "total": "nothing"}
    assert features(doubtful, "covered") == {"vendor": "nothing", "total": "nothing"}
    assert features(contradicted, "covered") == {"vendor": "nothing", "total": "other"}
    scores = [
        next(each["score"] for each in one["evidence"] if each["path"] == "total") for one in (plain, contradicted)
    ]
    assert scores[1] < scores[0]


def test_without_asking_again_the_first_grounding_has_what_is_covered(
    session: Session, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction(PAPERS, plan={"passes": Passes(again=False, cover=True)}))
    assert names_of(session, extraction) == ["read", "ask", "ground", "ask_covered", "ground_covered"]


def test_where_covering_expires_the_records_are_those_of_before(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False, cover=True)})
    for _stage in STAGES[: STAGES.index(DocumentStage.ASK_AGAIN)]:
        extractions.advance(extraction.id)
        answering.work_off()
    extractions.advance(extraction.id)
    answering.expires_after = 1
    answering.work_off()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED
    assert "of stage ask_covered is expired" in (extraction.reason or "")
    found = records_of(session, storage, extraction)
    assert [record["status"] for record in found] == ["done", "done", "done", "failed", "failed"]
    assert features(found[0], "covered") == {"vendor": "nothing", "total": "nothing"}
    assert features(found[2], "covered") == {"vendor": None, "total": None}


def test_more_questions_than_a_batch_may_have_lines_are_refused_with_what_makes_them(
    session: Session, make_extraction: Any
) -> None:
    planned = lifecycle.stored_plan(make_extraction(PAPERS))
    few = Settings(max_batch_lines=2)
    require_askable(session, planned, num_documents=2, settings=few)
    with pytest.raises(
        TooLargeError, match=r"2 documents with 2 questions each are 4 lines[^$]*without second_reading"
    ):
        require_askable(session, replace(planned, passes=ALL), num_documents=2, settings=few)
