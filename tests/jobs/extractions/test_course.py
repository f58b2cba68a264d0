"""The course of an extraction: every document has its record, whatever becomes of it and of those who work on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from extraction.course.job import Passes
from extraction.scoring import reviews as scoring
from jobs import files
from jobs.batches import made_inputs
from jobs.chunks import fleet
from jobs.courses import stages as course_stages
from jobs.errors import ConflictError, InputError
from jobs.extractions import documents, lifecycle, outputs, records, reviews, stages
from jobs.extractions.advancing import Extractions
from jobs.extractions.stages import STAGES, Stage, stages_for
from jobs.settings import Settings
from jobs.states import ExtractionState
from jobs.storage import Storage
from jobs.tables import Batch, CollectionDocument, Extraction, File
from tests.jobs.extractions.answering import ENDLESS, FLAKY, Answering
from tests.jobs.extractions.builders import records_of

Run = Callable[[Extraction], Extraction]

GOOD = "vendor: Ash Ltd\ntotal: 12.50"
FIVE_FIELDS = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(5)}}
ENDLESS_PAPER = "\n".join(f"{name}: {name[-1]} {ENDLESS}" for name in FIVE_FIELDS["properties"])
PAPERS = {"a.txt": GOOD, "b.txt": f"vendor: Birch {FLAKY} Ltd\ntotal: 3.00", "empty.txt": "", "c.txt": "CRASH\n" + GOOD}


def begun_of(session: Session, extraction: Extraction) -> list[tuple[str, int]]:
    begun = stages.stages_of(session, extraction.id)
    return [(stages.stage_of(stage).value, stage.num_lines) for stage in begun]


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


def test_only_doubtful_documents_are_asked_again_and_their_tokens_are_counted(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"]}))
    begun = stages.stages_of(session, extraction.id)
    assert [stage.num_lines for stage in begun] == [2, 2, 2, 1, 1]
    assert [record["usage"]["input_tokens"] for record in records_of(session, storage, extraction)] == [7, 14]
    assert len(answering.asked) == 3


def test_what_an_answer_left_out_is_asked_in_halves_each_round_two_stages(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction({"a.txt": ENDLESS_PAPER, "b.txt": "field_0: 7"}, schema=FIVE_FIELDS))
    assert begun_of(session, extraction)[2:] == [
        *(("ground", 2), ("ask_again", 2), ("ground_again", 1)),
        *(("ask_again", 4), ("ground_again", 1), ("ask_again", 2), ("ground_again", 1)),
    ]
    records = records_of(session, storage, extraction)
    assert records[0]["fields"] == {name: f"{name[-1]} ENDLESS" for name in FIVE_FIELDS["properties"]}
    assert [record["usage"]["input_tokens"] for record in records] == [7 * len(answering.asked) - 7, 7]


def test_a_round_asks_as_much_as_a_batch_may_have_lines_and_records_tell_what_was_left_out(
    session: Session, storage: Storage, make_extraction: Any, maker: sessionmaker[Session], answering: Answering
) -> None:
    extraction = make_extraction({"a.txt": ENDLESS_PAPER}, schema=FIVE_FIELDS)
    few = Extractions(maker, storage, Settings(max_batch_lines=1))
    while few.advance(extraction.id) or extraction.state != ExtractionState.COMPLETED:
        answering.work_off()
        session.refresh(extraction)
    assert begun_of(session, extraction)[3:] == [("ask_again", 1), ("ground_again", 1)] * 3
    (record,) = records_of(session, storage, extraction)
    assert [value is None for value in record["fields"].values()] == [True, True, True, False, True]
    unsure = {each["path"]: each["reasons"] for each in record["evidence"] if each["review"]}
    assert list(unsure) == [name for name, value in record["fields"].items() if value is None]


def test_stages_that_an_earlier_release_began_have_no_names_and_are_gone_on_with(
    session: Session, storage: Storage, make_extraction: Any, run: Run, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"a.txt": ENDLESS_PAPER}, schema=FIVE_FIELDS)
    for _stage in STAGES[: STAGES.index(Stage.GROUND_AGAIN)]:
        extractions.advance(extraction.id)
        answering.work_off()
    session.execute(text("UPDATE extraction_stage SET name = NULL"))
    session.commit()
    run(extraction)
    assert [name for name, _num_lines in begun_of(session, extraction)] == [
        *("read", "ask", "ground"),
        *(["ask_again", "ground_again"] * 3),
    ]
    (record,) = records_of(session, storage, extraction)
    assert None not in record["fields"].values()


def test_without_asking_again_the_first_answer_is_all_there_is(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({"b.txt": PAPERS["b.txt"]}, plan={"passes": Passes(again=False)}))
    assert len(stages.stages_of(session, extraction.id)) == 3
    record = records_of(session, storage, extraction)[0]
    assert record["fields"]["vendor"] == "nowhere to be found"
    assert [each["grounding"] for each in record["evidence"]] == ["none", "exact"]


def test_where_nothing_is_doubtful_the_last_stages_have_no_batch(
    session: Session, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({"a.txt": GOOD}))
    assert [stage.batch_id is None for stage in stages.stages_of(session, extraction.id)] == [
        *(False, False, False),
        *(True, True),
    ]


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


EFFECTS = [
    (made_inputs, "write_input"),
    (stages, "begin"),
    (documents, "note_read"),
    (course_stages, "note_ended"),
    (outputs, "write"),
    (outputs, "write_provisional"),
    (reviews, "insert"),
    (lifecycle, "move"),
]


@pytest.mark.parametrize(("module", "name"), EFFECTS, ids=[name for _module, name in EFFECTS])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_killed_before_or_after_any_effect_another_worker_goes_on(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    name: str,
    is_after: bool,
) -> None:
    """Each call of the effect is killed once: by what is no Exception, so that nothing of the worker is tidied up."""
    effect = getattr(module, name)
    killed: set[int] = set()
    calls: list[int] = []

    def deadly(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) % 2 == 1:
            if is_after:
                effect(*given, **named)
            killed.add(len(calls))
            raise KeyboardInterrupt
        return effect(*given, **named)

    monkeypatch.setattr(module, name, deadly)
    monkeypatch.setattr(scoring, "SAMPLED", 1.0)
    passes = Passes(second_reading=True, cover=True)
    extraction = make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"]}, plan={"passes": passes})
    for _ in range(40):
        try:
            run(extraction)
        except KeyboardInterrupt:
            session.rollback()
            session.execute(text("UPDATE extraction SET claimed_until = now() - interval '1 second'"))
            session.commit()
        else:
            break
    assert killed
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == [
        "Ash Ltd",
        f"Birch {FLAKY} Ltd",
    ]
    assert session.scalar(text("SELECT count(*) FROM batch")) == len(STAGES)
    assert session.scalar(text("SELECT sum(num_completed) FROM batch")) == 2 + 4 + 2 + 1 + 1 + 2 + 2
    kept = text("SELECT count(*) FROM file WHERE deleted_at IS NULL AND filename LIKE '%provisional%'")
    assert session.scalar(kept) == 0
    reviewed = session.execute(text("SELECT document, path FROM review ORDER BY document, path")).all()
    assert [tuple(row) for row in reviewed] == [
        (name, path) for name in ("a.txt", "b.txt") for path in ("total", "vendor")
    ]


def test_two_workers_are_never_at_one_extraction(
    session: Session, maker: sessionmaker[Session], storage: Storage, settings: Settings, make_extraction: Any
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    others: list[bool] = []

    class Watching(Extractions):
        def _begin_stage(self, *given: Any) -> bool:
            others.append(Extractions(maker, storage, settings).advance(extraction.id))
            return super()._begin_stage(*given)

    assert Watching(maker, storage, settings).advance(extraction.id) is True
    assert others == [False]
    assert session.scalar(text("SELECT count(*) FROM batch")) == 1


def test_a_worker_whose_claim_was_taken_changes_nothing(
    session: Session,
    maker: sessionmaker[Session],
    extractions: Extractions,
    make_extraction: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    write = made_inputs.write_input

    def overtaken(*given: Any, **named: Any) -> Any:
        with maker.begin() as other:
            other.execute(text("UPDATE extraction SET claim_fence = claim_fence + 1, claimed_by = 'other'"))
        return write(*given, **named)

    monkeypatch.setattr(made_inputs, "write_input", overtaken)
    assert extractions.advance(extraction.id) is False
    assert session.scalar(text("SELECT count(*) FROM batch")) == 0
    assert session.scalar(text("SELECT count(*) FROM extraction_stage")) == 0


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
    """Have an extraction cancelled while its last records are written."""

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
    for _stage in STAGES[: STAGES.index(Stage.ASK_AGAIN)]:
        extractions.advance(extraction.id)
        answering.work_off()
    extractions.advance(extraction.id)
    answering.expires_after = 0
    answering.work_off()
    run(extraction)
    (record,) = records_of(session, storage, extraction)
    assert (record["status"], record["fields"]["total"]) == ("done", "3.00")
    assert "of stage ask_again is expired" in (extraction.reason or "")


def test_what_was_answered_has_time_to_be_looked_for_after_the_window(
    session: Session, make_extraction: Any, extractions: Extractions, answering: Answering
) -> None:
    extraction = make_extraction({"a.txt": GOOD})
    for _stage in STAGES[: STAGES.index(Stage.GROUND)]:
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
    files.delete_file(session, extraction.tenant_id, extraction.documents_file_id or "", by="key_1")
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
        session.execute(text("UPDATE extraction SET look_at = NULL"))
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
    session.execute(text("ALTER TABLE extraction ADD CONSTRAINT refused CHECK (state <> 'failed')"))
    session.commit()
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert (extraction.state, extraction.num_tries) == (ExtractionState.IN_PROGRESS, 1)
    assert extraction.look_at is not None
    session.execute(text("ALTER TABLE extraction DROP CONSTRAINT refused"))
    session.commit()
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert (extraction.state, extraction.reason) == (ExtractionState.FAILED, "it is gone")


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
