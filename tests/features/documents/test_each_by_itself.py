"""Tests of documents that go on by themselves: those read first are asked while others are read, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle, records, stages
from features.documents.courses import rows
from features.documents.courses.advancing import DocumentAdvancer
from features.documents.extraction.course.job import Passes
from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from flows import due, nodes
from jobs.batches import made_inputs, scan
from jobs.batches.growth import adding, segments
from jobs.batches.lifecycle import cancel_batch
from jobs.storage import Storage
from jobs.tables import Batch, File
from tests.features.documents.answering import FLAKY, Answering
from tests.features.documents.builders import records_of
from tests.flows.advancers import Extractions

Run = Callable[[Extraction], Extraction]

CHUNK = 4
"""Documents that are read in one chunk, usually 16."""
NUM_DOCUMENTS = 6
PAPERS = {f"{n}.txt": f"vendor: Ash {n} {FLAKY if n % 4 == 0 else 'Ltd'}\ntotal: {n}.50" for n in range(NUM_DOCUMENTS)}
VENDORS = [text.partition("\n")[0].removeprefix("vendor: ") for text in PAPERS.values()]
ALL_PASSES = {"passes": Passes(second_reading=True, cover=True)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PREPARE_LINES", CHUNK)


@pytest.fixture
def piecemeal(answering: Answering) -> Answering:
    """Run one chunk of each batch at a time."""
    answering.chunks_a_turn = 1
    return answering


def batch_of(session: Session, extraction: Extraction, stage: str) -> Batch:
    session.expire_all()
    (node,) = (node for node in stages.stages_of(session, extraction.id) if node.name == stage)
    return session.get_one(Batch, node.batch_id)


def lines_of(session: Session, storage: Storage, batch: Batch) -> int:
    return b"".join(storage.iter_chunks(session.get_one(File, batch.input_file_id).object_key)).count(b"\n")


def test_the_first_documents_have_records_before_the_last_are_read(
    session: Session, storage: Storage, make_extraction: Any, extractions: Extractions, piecemeal: Answering, run: Run
) -> None:
    extraction = make_extraction(PAPERS)
    for _ in range(3):
        extractions.advance(extraction.id)
        piecemeal.work_off()
        others = text("UPDATE chunk SET state = 'waiting' WHERE first_line >= :first AND state = 'ready'")
        session.execute(others, {"first": CHUNK})
        session.commit()
    extractions.advance(extraction.id)
    asked = batch_of(session, extraction, "ask")
    assert (asked.is_growing, asked.num_requests, asked.num_completed) == (True, CHUNK, CHUNK)
    file = records.latest_file(session, extraction)
    assert file is not None
    page = records.read_page(storage, file, after=0, limit=100)
    assert (page.content.count(b"\n"), page.is_final) == (CHUNK, False)
    session.execute(text("UPDATE chunk SET state = 'ready' WHERE state = 'waiting'"))
    session.commit()
    run(extraction)
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == VENDORS


@pytest.mark.parametrize("passes", [{}, ALL_PASSES], ids=["usual", "all"])
def test_what_was_added_to_a_batch_is_one_input_at_its_end(
    session: Session, storage: Storage, make_extraction: Any, piecemeal: Answering, run: Run, passes: Any
) -> None:
    extraction = run(make_extraction(PAPERS, plan=passes))
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == VENDORS
    asked = batch_of(session, extraction, "ask")
    assert asked.num_requests == NUM_DOCUMENTS * (2 if passes else 1)
    assert lines_of(session, storage, asked) == asked.num_requests
    assert session.get_one(File, asked.input_file_id).num_requests == asked.num_requests
    left = text("SELECT (SELECT count(*) FROM input_segment) + (SELECT count(*) FROM input_digest)")
    assert (session.scalar(left), asked.is_growing, asked.reserved_tokens) == (0, False, 0)
    assert session.scalar(text("SELECT sum(reserved_tokens) FROM budget")) == 0


EFFECTS = [
    (made_inputs, "write_input"),
    (adding, "add"),
    (stages, "begin"),
    (rows, "move"),
    (nodes, "note_ended"),
    (segments, "close"),
    (segments, "join"),
]


@pytest.mark.parametrize(("module", "name"), EFFECTS, ids=[name for _module, name in EFFECTS])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_killed_at_any_effect_each_document_is_asked_and_billed_once(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    piecemeal: Answering,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    name: str,
    is_after: bool,
) -> None:
    effect, calls = getattr(module, name), list[int]()

    def deadly(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) % 2 == 1:
            if is_after:
                effect(*given, **named)
            raise KeyboardInterrupt
        return effect(*given, **named)

    monkeypatch.setattr(module, name, deadly)
    extraction = make_extraction(PAPERS, plan={"passes": Passes(cover=True)})
    for _ in range(60):
        try:
            run(extraction)
        except KeyboardInterrupt:
            session.rollback()
            for table in ("flow", "batch"):
                session.execute(text(f"UPDATE {table} SET claimed_until = now() - interval '1 second'"))
            session.commit()
        else:
            break
    assert calls
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == VENDORS
    num_flaky = sum(FLAKY in vendor for vendor in VENDORS)
    num_asked = 2 * NUM_DOCUMENTS + num_flaky
    assert len(piecemeal.asked) == num_asked, "once, again where it was doubtful, and with values covered"
    assert session.scalar(text("SELECT sum(input_tokens) FROM ledger")) == 7 * num_asked


def test_a_document_that_equals_one_of_an_earlier_addition_is_a_copy_of_it(
    session: Session, make_extraction: Any, piecemeal: Answering, run: Run
) -> None:
    same = dict.fromkeys(PAPERS, "vendor: Ash Ltd\ntotal: 1.50")
    extraction = run(make_extraction(same, plan={"passes": Passes(again=False)}))
    asked = batch_of(session, extraction, "ask")
    copies = text("SELECT copies FROM chunk WHERE batch_id = :id ORDER BY first_line")
    found = [pairs for pairs in session.scalars(copies, {"id": asked.id}) if pairs]
    assert [line for pairs in found for line in pairs[::2]] == list(range(1, NUM_DOCUMENTS))
    assert {original for pairs in found for original in pairs[1::2]} == {0}


def read_some(session: Session, extractions: Extractions, answering: Answering, extraction: Extraction) -> Batch:
    """Read a chunk of documents, and begin to ask them."""
    for _ in range(2):
        extractions.advance(extraction.id)
        answering.work_off()
    asked = batch_of(session, extraction, "ask")
    assert (asked.state, asked.is_growing) == ("in_progress", True)
    return asked


def test_where_the_budget_ends_meanwhile_the_others_say_so_and_the_first_have_their_records(
    session: Session, storage: Storage, make_extraction: Any, extractions: Extractions, piecemeal: Answering, run: Run
) -> None:
    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False)})
    read_some(session, extractions, piecemeal, extraction)
    session.execute(text("UPDATE budget SET limit_tokens = spent_tokens + reserved_tokens + 1"))
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED
    assert "stage ask, which had no room" in (extraction.reason or "")
    codes = [record["error"] and record["error"]["code"] for record in records_of(session, storage, extraction)]
    assert codes == [None] * CHUNK + ["not_asked"] * (NUM_DOCUMENTS - CHUNK)


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_where_asking_ends_early_what_was_answered_by_then_has_its_record(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    extractions: Extractions,
    piecemeal: Answering,
    run: Run,
    *,
    end: str,
) -> None:
    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False)})
    asked = read_some(session, extractions, piecemeal, extraction)
    if end == "cancelled":
        cancel_batch(session, asked.tenant_id, asked.id)
    else:
        piecemeal.expire(asked.id)
    session.commit()
    run(extraction)
    codes = [record["error"] and record["error"]["code"] for record in records_of(session, storage, extraction)]
    assert codes == [None] * CHUNK + [f"batch_{end}"] * (NUM_DOCUMENTS - CHUNK)
    assert session.scalar(text("SELECT count(*) FROM input_digest")) == 0


def test_a_cancelled_extraction_ends_its_growing_batches(
    session: Session, make_extraction: Any, extractions: Extractions, piecemeal: Answering, run: Run
) -> None:
    extraction = make_extraction(PAPERS)
    read_some(session, extractions, piecemeal, extraction)
    lifecycle.cancel_extraction(session, extraction.tenant_id, extraction.id, reason="enough")
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.CANCELLED
    assert set(session.scalars(text("SELECT state FROM batch"))) <= {"cancelled", "completed"}


FEW = 2


@pytest.fixture
def few_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "UNDER_WAY", FEW)


@pytest.mark.usefixtures("few_under_way")
def test_only_so_many_documents_are_under_way_and_all_come_to_their_end(
    session: Session, storage: Storage, make_extraction: Any, extractions: Extractions, answering: Answering, run: Run
) -> None:
    extraction = make_extraction(PAPERS)
    extractions.advance(extraction.id)
    reading = batch_of(session, extraction, "read")
    answering.work_off()
    session.refresh(reading)
    answering.chunks_a_turn = 2
    assert (reading.num_requests, reading.is_growing) == (FEW, True)
    extractions.advance(extraction.id)
    session.refresh(reading)
    assert reading.num_requests == FEW, "those that were read are to be asked first"
    run(extraction)
    session.refresh(reading)
    assert (reading.num_requests, reading.is_growing, reading.state) == (NUM_DOCUMENTS, False, "completed")
    assert lines_of(session, storage, reading) == NUM_DOCUMENTS
    assert [record["fields"]["vendor"] for record in records_of(session, storage, extraction)] == VENDORS


@pytest.mark.usefixtures("few_under_way")
def test_killed_after_the_last_documents_were_added_another_worker_ends_their_batch(
    session: Session, make_extraction: Any, answering: Answering, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.chunks_a_turn = 2
    effect, killed = segments.close, list[str]()

    def deadly(own: Session, batch: Batch) -> None:
        if not killed and batch.is_growing and batch.num_requests == NUM_DOCUMENTS:
            killed.append(batch.id)
            raise KeyboardInterrupt
        effect(own, batch)

    monkeypatch.setattr(segments, "close", deadly)
    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False)})
    with pytest.raises(KeyboardInterrupt):
        run(extraction)
    session.rollback()
    session.execute(text("UPDATE flow SET claimed_until = now() - interval '1 second'"))
    session.commit()
    run(extraction)
    assert killed == [batch_of(session, extraction, "read").id]
    assert (extraction.state, extraction.num_done) == (ExtractionState.COMPLETED, NUM_DOCUMENTS)


@pytest.mark.usefixtures("few_under_way")
def test_documents_that_wait_to_be_read_do_not_keep_the_others_from_being_asked(
    session: Session, make_extraction: Any, extractions: Extractions, answering: Answering
) -> None:
    session.execute(text("UPDATE tenant SET max_open_batches = 1"))
    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False)})
    for _ in range(40):
        extractions.advance(extraction.id)
        answering.work_off()
        session.execute(text("UPDATE flow SET look_at = NULL"))
        session.commit()
    session.refresh(extraction)
    assert (extraction.state, extraction.num_done) == (ExtractionState.COMPLETED, NUM_DOCUMENTS)


@pytest.mark.usefixtures("few_under_way")
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_where_reading_ends_early_documents_that_waited_say_so(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    extractions: Extractions,
    answering: Answering,
    run: Run,
    *,
    end: str,
) -> None:
    extraction = make_extraction(PAPERS)
    extractions.advance(extraction.id)
    answering.work_off()
    reading = batch_of(session, extraction, "read")
    if end == "cancelled":
        cancel_batch(session, reading.tenant_id, reading.id)
        session.commit()
    else:
        answering.expire(reading.id)
    run(extraction)
    codes = [record["error"] and record["error"]["code"] for record in records_of(session, storage, extraction)]
    assert codes == [None] * FEW + [f"batch_{end}"] * (NUM_DOCUMENTS - FEW)


@pytest.mark.usefixtures("few_under_way")
def test_killed_before_further_documents_are_read_it_is_due(
    session: Session,
    maker: sessionmaker[Session],
    make_extraction: Any,
    extractions: Extractions,
    answering: Answering,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deadly(*_given: Any) -> bool:
        raise KeyboardInterrupt

    extraction = make_extraction(PAPERS, plan={"passes": Passes(again=False)})
    with monkeypatch.context() as killing:
        killing.setattr(DocumentAdvancer, "read_more", deadly)
        for _ in range(6):
            with suppress(KeyboardInterrupt):
                extractions.advance(extraction.id)
            session.rollback()
            session.execute(text("UPDATE flow SET claimed_until = NULL, claimed_by = NULL, look_at = NULL"))
            session.commit()
            answering.work_off()
    assert session.scalar(text("SELECT count(*) FROM extraction_document WHERE node IS NULL")) == FEW
    with maker() as other:
        assert [each.id for each in due.find_due(other, ["extraction"])] == [extraction.id]
    answering.chunks_a_turn = 2
    run(extraction)
    assert extraction.num_done == NUM_DOCUMENTS


def test_it_is_due_when_a_result_has_come_and_not_before(
    session: Session, maker: sessionmaker[Session], make_extraction: Any, extractions: Extractions, piecemeal: Answering
) -> None:
    extraction = make_extraction(PAPERS)
    extractions.advance(extraction.id)

    def is_due() -> bool:
        with maker() as other:
            return [each.id for each in due.find_due(other, ["extraction"])] == [extraction.id]

    assert not is_due()
    piecemeal.work_off()
    assert is_due()
    extractions.advance(extraction.id)
    assert not is_due()


@pytest.mark.parametrize("num_stages", range(1, 8))
def test_one_that_began_when_all_documents_went_together_goes_on_and_asks_nothing_again(
    session: Session,
    storage: Storage,
    make_extraction: Any,
    extractions: Extractions,
    answering: Answering,
    run: Run,
    *,
    num_stages: int,
) -> None:
    num_papers = 3
    papers = {**dict(list(PAPERS.items())[:num_papers]), "empty.txt": ""}
    extraction = make_extraction(papers, plan=ALL_PASSES)
    for _ in range(num_stages):
        extractions.advance(extraction.id)
        answering.work_off()
    session.execute(text("DELETE FROM extraction_document"))
    session.execute(text("UPDATE flow_node SET num_seen = NULL"))
    session.commit()
    run(extraction)
    found = records_of(session, storage, extraction)
    assert [record["fields"] and record["fields"]["vendor"] for record in found] == [*VENDORS[:num_papers], None]
    num_flaky = sum(FLAKY in vendor for vendor in VENDORS[:num_papers])
    assert len(answering.asked) == num_papers * 3 + num_flaky
