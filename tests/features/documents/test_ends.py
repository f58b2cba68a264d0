"""Tests of extractions that end before they are complete: cancelled, expired, failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle, outputs, records, stages
from features.documents.extraction.course.job import Passes
from features.documents.stages import STAGES, DocumentStage
from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from jobs import files
from jobs.errors import ConflictError, InputError
from jobs.storage import Storage
from jobs.tables import Batch, File
from tests.database_roles import as_superuser_do
from tests.features.documents.answering import Answering
from tests.features.documents.builders import records_of
from tests.features.documents.papers import GOOD, PAPERS
from tests.flows.advancers import Extractions

Run = Callable[[Extraction], Extraction]


def test_a_cancelled_extraction_cancels_its_batch_and_has_no_records(
    session: Session, make_extraction: Any, extractions: Extractions, run: Run
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    extractions.advance(extraction.id)
    lifecycle.cancel_extraction(session, extraction.tenant_id, extraction.id, reason="enough")
    session.commit()
    run(extraction)
    assert (extraction.state, extraction.reason, extraction.output_file_id) == ("cancelled", "enough", None)
    assert session.scalar(text("SELECT state FROM batch")) == "cancelled"


@pytest.fixture
def cancelled_meanwhile(maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch) -> Callable[[Extraction], None]:
    """Cancel an extraction while its last records are written."""

    def cancel(extraction: Extraction) -> None:
        extraction_id, tenant_id, write = extraction.id, extraction.tenant_id, outputs.write

        def overtaken(*given: Any, **named: Any) -> Any:
            with maker.begin() as other:
                lifecycle.cancel_extraction(other, tenant_id, extraction_id, reason="enough")
            return write(*given, **named)

        monkeypatch.setattr(outputs, "write", overtaken)

    return cancel


def test_one_that_is_cancelled_while_its_only_records_are_written_has_none(
    session: Session, make_extraction: Any, run: Run, cancelled_meanwhile: Callable[[Extraction], None]
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    cancelled_meanwhile(extraction)
    run(extraction)
    assert (extraction.state, extraction.reason, extraction.output_file_id) == ("cancelled", "enough", None)
    with pytest.raises(ConflictError, match="is cancelled and will have none"):
        records.latest_file(session, extraction)


def test_one_that_is_cancelled_while_its_last_records_are_written_keeps_those_that_were_read_by_then(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    cancelled_meanwhile: Callable[[Extraction], None],
) -> None:
    extraction = make_extraction({"b.txt": PAPERS["b.txt"]})
    cancelled_meanwhile(extraction)
    run(extraction)
    assert (extraction.state, extraction.reason, extraction.num_done) == ("cancelled", "enough", 0)
    assert session.get_one(File, extraction.output_file_id).filename == f"{extraction.id}.provisional.jsonl"
    file = records.latest_file(session, extraction)
    assert file is not None
    page = records.read_page(storage, file, after=0, limit=1)
    assert (page.content.count(b"\n"), page.is_final) == (1, False)
    assert session.scalar(text("SELECT count(*) FROM review")) == 0
    assert session.scalar(text("SELECT sum(input_tokens) FROM ledger")) == 2 * 7, "both answers are billed"


def test_what_was_answered_before_a_stage_expired_is_put_out_and_the_rest_has_its_code(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"], "empty.txt": ""})
    extractions.advance(extraction.id)
    answering.work_off()
    extractions.advance(extraction.id)
    answering.expires_after = 1
    answering.work_off()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED
    assert "of stage ask is expired" in (extraction.reason or "")
    records = records_of(session, storage, extraction)
    assert [record["error"] and record["error"]["code"] for record in records] == [None, "batch_expired", "empty"]
    assert records[0]["fields"] == {"vendor": "Ash Ltd", "total": "12.50"}
    assert [record["usage"]["input_tokens"] for record in records] == [7, 0, 0]
    assert (extraction.num_done, extraction.failed_codes) == (1, {"batch_expired": 1, "empty": 1})
    assert session.scalar(text("SELECT sum(input_tokens) FROM batch")) == 7


@pytest.mark.parametrize("state", ["expired", "cancelled"])
def test_after_a_stage_that_ended_early_nothing_is_asked_of_the_model(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    extractions: Extractions,
    answering: Answering,
    *,
    state: str,
) -> None:
    extraction = make_extraction({"a.txt": GOOD, "b.txt": ""})
    extractions.advance(extraction.id)
    answering.work_off()
    session.execute(text("UPDATE batch SET state = :state"), {"state": state})
    session.commit()
    run(extraction)
    assert (extraction.state, answering.asked) == (ExtractionState.COMPLETED, [])
    codes = [record["error"]["code"] for record in records_of(session, storage, extraction)]
    assert codes == [f"batch_{state}", "empty"]


def test_where_asking_again_expires_the_first_answers_are_all_there_is(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"b.txt": PAPERS["b.txt"]})
    for _stage in STAGES[: STAGES.index(DocumentStage.ASK_AGAIN)]:
        extractions.advance(extraction.id)
        answering.work_off()
    extractions.advance(extraction.id)
    answering.expires_after = 0
    answering.work_off()
    run(extraction)
    (record,) = records_of(session, storage, extraction)
    assert (record["status"], record["fields"]["total"]) == ("done", "3.00")
    assert "of stage ask_again is expired" in (extraction.reason or "")


@pytest.mark.parametrize(
    ("limit", "passes", "stage", "why"),
    [
        (
            "tenant SET max_enqueued_tokens = 10",
            Passes(),
            DocumentStage.ASK_AGAIN,
            "open batches together may have 10,",
        ),
        ("tenant SET max_stored_bytes = 10", Passes(), DocumentStage.ASK_AGAIN, "together 10 are allowed"),
        ("tenant SET max_files = 1", Passes(again=False, cover=True), DocumentStage.ASK_COVERED, "1 are allowed"),
        ("tenant SET max_stored_bytes = 10", Passes(), DocumentStage.GROUND_AGAIN, "together 10 are allowed"),
        ("budget SET limit_tokens = 1", Passes(), DocumentStage.ASK_AGAIN, "this work needs about"),
    ],
)
def test_a_stage_that_has_no_room_for_good_is_left_out_where_records_can_do_without_it(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    extractions: Extractions,
    answering: Answering,
    *,
    limit: str,
    passes: Passes,
    stage: DocumentStage,
    why: str,
) -> None:
    extraction = make_extraction({"b.txt": PAPERS["b.txt"]}, plan={"passes": passes})
    stages_before = stages.stages_for(passes)
    for _stage in stages_before[: stages_before.index(stage)]:
        extractions.advance(extraction.id)
        answering.work_off()
    session.execute(text(f"UPDATE {limit}"))
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED
    assert (extraction.reason or "").startswith(f"it ended before its stage {stage}, which had no room: ")
    assert why in (extraction.reason or "")
    (record,) = records_of(session, storage, extraction)
    assert (record["status"], record["fields"]["total"]) == ("done", "3.00")


def test_a_stage_that_waits_for_room_is_left_out_when_time_is_over(
    session: Session, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"b.txt": PAPERS["b.txt"]})
    for _stage in STAGES[: STAGES.index(DocumentStage.ASK_AGAIN)]:
        extractions.advance(extraction.id)
        answering.work_off()
    session.execute(text("UPDATE tenant SET max_open_batches = 0"))
    session.commit()
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert (extraction.state, extraction.look_at is None) == (ExtractionState.IN_PROGRESS, False)
    session.execute(text("UPDATE flow SET look_at = NULL"))
    session.execute(text("UPDATE extraction SET expires_at = now()"))
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED
    assert "ask_again, which had no room: You have 0 open batches and 0 are allowed." in (extraction.reason or "")


def test_what_was_answered_has_time_to_be_looked_for_after_the_window(
    session: Session, make_extraction: Any, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    for _stage in STAGES[: STAGES.index(DocumentStage.GROUND)]:
        extractions.advance(extraction.id)
        answering.work_off()
    session.execute(text("UPDATE extraction SET expires_at = now() - interval '1 minute'"))
    session.commit()
    extractions.advance(extraction.id)
    newest = select(Batch.completion_window).order_by(Batch.created_at.desc(), Batch.id.desc())
    assert session.scalars(newest).first() == "60m"


def test_an_extraction_whose_batch_fails_fails_with_the_batch_in_its_reason(
    session: Session, make_extraction: Any, extractions: Extractions, run: Run
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    extractions.advance(extraction.id)
    session.execute(text("UPDATE batch SET state = 'failed'"))
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.FAILED
    assert extraction.reason is not None
    assert "of stage read is failed" in extraction.reason


def test_an_extraction_whose_files_were_deleted_fails_and_says_so(
    session: Session, make_extraction: Any, extractions: Extractions, answering: Answering, run: Run
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    extractions.advance(extraction.id)
    answering.work_off()
    session.refresh(extraction)
    files.delete_file(session, extraction.tenant_id, extraction.plan_file_id or "", by="key_1")
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.FAILED
    assert "was deleted or has expired" in (extraction.reason or "")


def test_a_defect_is_tried_again_and_then_ends_the_extraction(
    session: Session, make_extraction: Any, extractions: Extractions, monkeypatch: pytest.MonkeyPatch
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    monkeypatch.setattr(stages, "begin", lambda *_given, **_named: 1 / 0)
    for number in range(1, 7):
        session.execute(text("UPDATE flow SET look_at = NULL"))
        session.commit()
        extractions.advance(extraction.id)
        session.refresh(extraction)
        assert extraction.num_tries == number
    assert extraction.state == ExtractionState.FAILED
    assert "an unexpected error" in (extraction.reason or "")


def test_an_extraction_whose_end_the_database_refuses_is_tried_ever_later(
    session: Session, make_extraction: Any, extractions: Extractions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_named: Any) -> None:
        raise InputError("it is gone")

    extraction = make_extraction({"a.txt": GOOD})
    monkeypatch.setattr(stages, "begin", refuse)
    as_superuser_do(session, "ALTER TABLE flow ADD CONSTRAINT refused CHECK (state <> 'failed')")
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert (extraction.state, extraction.num_tries) == (ExtractionState.IN_PROGRESS, 1)
    assert extraction.look_at is not None
    as_superuser_do(session, "ALTER TABLE flow DROP CONSTRAINT refused")
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert (extraction.state, extraction.reason) == (ExtractionState.FAILED, "it is gone")
