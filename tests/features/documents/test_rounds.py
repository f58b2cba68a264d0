"""Tests of asking again: rounds of questions for doubtful or missing values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from sqlalchemy.orm import Session, sessionmaker

from features.documents import stages
from features.documents.extraction.course.document import NO_ROOM
from features.documents.extraction.course.job import Passes
from features.documents.extraction.scoring.records import UNANSWERED
from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from jobs.lines.document_bodies import GROUND_ENDPOINT
from jobs.storage import Storage
from jobs.tables import Batch, File
from tests.all_settings import Settings
from tests.features.documents.answering import ENDLESS, Answering
from tests.features.documents.builders import records_of
from tests.features.documents.papers import GOOD, PAPERS
from tests.flows.advancers import extractions_of

Run = Callable[[Extraction], Extraction]

FIVE_FIELDS = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(5)}}
ENDLESS_PAPER = "\n".join(f"{name}: {name[-1]} {ENDLESS}" for name in FIVE_FIELDS["properties"])


def begun_of(session: Session, extraction: Extraction) -> list[tuple[str, int]]:
    begun = stages.stages_of(session, extraction.id)
    return [(stages.stage_of(stage).value, stage.num_lines) for stage in begun]


def test_only_doubtful_documents_are_asked_again_and_their_tokens_are_counted(
    session: Session, storage: Storage, make_extraction: Any, run: Run, answering: Answering
) -> None:
    extraction = run(make_extraction({"a.txt": GOOD, "b.txt": PAPERS["b.txt"]}))
    begun = stages.stages_of(session, extraction.id)
    assert [stage.num_lines for stage in begun] == [2, 2, 2, 1, 1]
    assert [record["usage"]["input_tokens"] for record in records_of(session, storage, extraction)] == [7, 14]
    assert len(answering.asked) == 3


def test_the_first_grounding_knows_of_no_rounds(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({"b.txt": PAPERS["b.txt"]}))
    batches = [session.get_one(Batch, stage.batch_id) for stage in stages.stages_of(session, extraction.id)]
    inputs = [session.get_one(File, batch.input_file_id) for batch in batches if batch.endpoint == GROUND_ENDPOINT]
    lines = [orjson.loads(b"".join(storage.iter_chunks(file.object_key))) for file in inputs]
    assert ["again" in line["body"] for line in lines] == [False, True]


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
    few = extractions_of(maker, storage, Settings(max_batch_lines=1))
    while few.advance(extraction.id) or extraction.state != ExtractionState.COMPLETED:
        answering.work_off()
        session.refresh(extraction)
    assert begun_of(session, extraction)[3:] == [("ask_again", 1), ("ground_again", 1)] * 3
    (record,) = records_of(session, storage, extraction)
    assert [value is None for value in record["fields"].values()] == [True, True, True, False, True]
    unsure = {each["path"]: each["reasons"] for each in record["evidence"] if each["review"]}
    assert list(unsure) == [name for name, value in record["fields"].items() if value is None]


def test_a_document_that_a_round_has_no_room_for_says_so_and_is_covered_as_others(
    session: Session, storage: Storage, make_extraction: Any, maker: sessionmaker[Session], answering: Answering
) -> None:
    extraction = make_extraction(
        {"a.txt": ENDLESS_PAPER, "b.txt": ENDLESS_PAPER}, schema=FIVE_FIELDS, plan={"passes": Passes(cover=True)}
    )
    few = extractions_of(maker, storage, Settings(max_batch_lines=2))
    while few.advance(extraction.id) or extraction.state != ExtractionState.COMPLETED:
        answering.work_off()
        session.refresh(extraction)
    begun = begun_of(session, extraction)
    assert begun[3:5] == [("ask_again", 2), ("ground_again", 2)]
    assert begun[-2:] == [("ask_covered", 2), ("ground_covered", 2)]
    records = records_of(session, storage, extraction)
    reasons = {reason for each in records[1]["evidence"] if each["review"] for reason in each["reasons"]}
    assert f"{UNANSWERED}: {NO_ROOM}" in reasons


def test_without_asking_again_the_first_answer_is_all_there_is(
    session: Session, storage: Storage, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({"b.txt": PAPERS["b.txt"]}, plan={"passes": Passes(again=False)}))
    assert len(stages.stages_of(session, extraction.id)) == 3
    record = records_of(session, storage, extraction)[0]
    assert record["fields"]["vendor"] is None
    assert record["evidence"][0]["answer"] == "nowhere to be found"
    assert [each["grounding"] for each in record["evidence"]] == ["none", "exact"]


def test_where_nothing_is_doubtful_the_last_stages_have_no_batch(
    session: Session, make_extraction: Any, run: Run
) -> None:
    extraction = run(make_extraction({"a.txt": GOOD}))
    assert [stage.batch_id is None for stage in stages.stages_of(session, extraction.id)] == [
        *(False, False, False),
        *(True, True),
    ]
