"""Tests of an extraction's worked examples: from a gold file or reviews, shown to others, and refused if wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import examples, lifecycle, stages
from features.documents.examples import Examples
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import Passes
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.verdicts import Reason, Verdict
from features.documents.reviewing.deciding import DecideReview, decide
from features.documents.stages import DocumentStage
from features.documents.states import ExtractionState
from features.documents.tables import CollectionDocument, Extraction, Review
from jobs import files
from jobs.accounts import tenants
from jobs.chunks import fleet
from jobs.claims.work import ClaimedWork
from jobs.database import transaction
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.storage import Storage
from tests.features.documents.answering import FLAKY, Answering

Run = Callable[[Extraction], Extraction]

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
PAPERS = {
    "a.txt": "vendor: Ash Ltd\ntotal: 12.50",
    "b.txt": "vendor: Birch Ltd\ntotal: 3.00",
    "c.txt": "vendor: Cedar Ltd\ntotal: 8.00",
}
GOLD = {"document": "a.txt", "fields": {"vendor": "Ash Ltd", "total": "12.50"}}


@pytest.fixture
def upload(session: Session, storage: Storage, tenant: Any) -> Callable[..., str]:
    """Store a gold file of these lines; return its id."""

    def upload(*lines: Any) -> str:
        content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
        key = files.new_object_key(tenant.id)
        new = files.NewFile(
            object_key=key, filename="gold.jsonl", purpose="user_data", size_bytes=storage.put(key, content)
        )
        made = files.create_file(session, tenant.id, new)
        session.commit()
        return made.id

    return upload


@pytest.fixture
def check(maker: sessionmaker[Session], storage: Storage, tenant: Any) -> Callable[..., None]:
    """Check examples as the API does before it creates an extraction of a collection."""

    def reading() -> AbstractContextManager[Session]:
        return transaction(maker)

    def check(source: str, collection_id: str, *, tenant_id: str = tenant.id, schema: Any = SCHEMA) -> None:
        found = Examples(
            reading=reading, storage=storage, tenant_id=tenant_id, collection_id=collection_id, source=source
        )
        found.check(FieldSchema.parse(json.dumps(schema).encode()))

    return check


def prompts_of(answering: Answering) -> list[str]:
    return [body["messages"][-1]["content"] for body in answering.asked]


def test_documents_of_a_gold_file_are_shown_to_all_others_and_never_to_themselves(
    session: Session, make_extraction: Any, run: Run, answering: Answering, upload: Any
) -> None:
    extraction = run(make_extraction(PAPERS, plan={"examples_of": upload(GOLD)}))
    assert extraction.state == ExtractionState.COMPLETED, extraction.reason
    assert ["<example>\nvendor: Ash Ltd\ntotal: 12.50\n</example>" in one for one in prompts_of(answering)] == [
        False,
        True,
        True,
    ]
    assert lifecycle.stored_plan(extraction).examples == (), "texts are in the kept plan alone"


def test_gold_with_its_text_is_an_example_that_no_collection_has(
    session: Session, make_extraction: Any, run: Run, answering: Answering, upload: Any
) -> None:
    line = {"document": "known/z.txt", "fields": {"vendor": "Zebra Ltd"}, "text": "Of Zebra Ltd"}
    run(make_extraction({"a.txt": PAPERS["a.txt"]}, plan={"examples_of": upload(line)}))
    (prompt,) = prompts_of(answering)
    assert "<example>\nOf Zebra Ltd\n</example>" in prompt


def test_reviewed_documents_of_another_collection_are_examples_with_what_people_found_right(
    session: Session,
    make_extraction: Any,
    run: Run,
    answering: Answering,
    check: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = {"passes": Passes(again=False)}
    earlier = run(make_extraction({"x.txt": f"vendor: {FLAKY}\ntotal: 1.00"}, plan=once))
    with pytest.raises(ConflictError, match="decide about all doubtful values"):
        check(earlier.id, earlier.collection_id)
    (doubtful,) = session.scalars(select(Review).where(Review.reason == Reason.DOUBT))
    verdict = DecideReview(verdict=Verdict.CORRECT, correction="Right Ltd")
    decide(session, earlier.tenant_id, doubtful.id, verdict, by="key_1")
    session.commit()
    check(earlier.id, earlier.collection_id)
    answering.asked.clear()
    read: list[bytes] = []

    def noted(_work: Any, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            read.append(piece)
            yield piece

    monkeypatch.setattr(ClaimedWork, "checked", noted)
    extraction = run(make_extraction(PAPERS, plan={"examples_of": earlier.id}))
    assert extraction.state == ExtractionState.COMPLETED, extraction.reason
    assert all("Right Ltd" in one for one in prompts_of(answering))
    assert any(b'"evidence"' in piece for piece in read), "records are read as long as the claim lasts"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["{"], "is no gold of this schema: line 1 is not JSON"),
        (["[" * 100_000], "is no gold of this schema: line 1 is nested too deep"),
        ([GOLD | {"document": "a.txt\0"}], "is no gold of this schema: line 1: the name 'a.txt"),
        ([GOLD | {"document": "a.txt\ud800"}], "line 1 cannot be stored"),
        ([GOLD | {"fields": {"amount": 1}}], "'amount' is no field of the schema"),
        ([GOLD | {"document": "z.txt"}], "'z.txt', which is no document of the collection"),
        ([], "has 0 documents"),
        ([GOLD | {"document": f"{number}.txt"} for number in range(101)], "has 101 documents; give from 1 to 100"),
    ],
)
def test_a_gold_file_that_can_be_no_examples_is_refused(
    make_collection: Any, upload: Any, check: Any, lines: list[Any], says: str
) -> None:
    made = make_collection(PAPERS)
    with pytest.raises(InputError, match=says):
        check(upload(*lines), made.id)


def test_a_gold_file_with_a_mark_at_its_begin_has_examples(make_collection: Any, upload: Any, check: Any) -> None:
    check(upload("\ufeff" + json.dumps(GOLD)), make_collection(PAPERS).id)


def test_an_extraction_of_an_index_is_no_example(session: Session, make_extraction: Any, run: Run, check: Any) -> None:
    extraction = run(make_extraction({"a.txt": PAPERS["a.txt"]}))
    corpus = Corpus(index_id="index_1", name="all", passage_tokens=256, top_k=5)
    extraction.plan = extraction.plan | {"corpus": asdict(corpus)}
    session.commit()
    with pytest.raises(InputError, match="was asked of an index, and examples are whole documents"):
        check(extraction.id, extraction.collection_id)


def test_what_another_tenant_has_is_not_found(
    session: Session, make_extraction: Any, run: Run, upload: Any, check: Any
) -> None:
    extraction = run(make_extraction({"a.txt": PAPERS["a.txt"]}))
    other = tenants.create_tenant(session, "other", limit_tokens=1000)
    session.commit()
    for source in (upload(GOLD), extraction.id):
        with pytest.raises(NotFoundError):
            check(source, extraction.collection_id, tenant_id=other.id)


def test_reviews_of_other_fields_are_refused(make_extraction: Any, run: Run, check: Any) -> None:
    extraction = run(make_extraction({"a.txt": PAPERS["a.txt"]}))
    other = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "number"}}}
    with pytest.raises(InputError, match="asked for 'total' as string, which this schema does not ask"):
        check(extraction.id, extraction.collection_id, schema=other)


def test_a_name_that_two_documents_have_is_refused_and_an_id_is_taken(
    session: Session, make_collection: Any, upload: Any, check: Any
) -> None:
    made, others = make_collection({"a.txt": "one"}), make_collection({"a.txt": "two"})
    for row in session.scalars(select(CollectionDocument).where(CollectionDocument.collection_id == others.id)):
        row.collection_id = made.id
        document_id = row.id
    session.commit()
    with pytest.raises(InputError, match=r"'a.txt', as two documents of the collection are called"):
        check(upload(GOLD), made.id)
    check(upload(GOLD | {"document": document_id}), made.id)


def test_gold_of_a_document_that_is_deleted_is_that_of_its_name(make_collection: Any, upload: Any, check: Any) -> None:
    made = make_collection(PAPERS)
    read_back = GOLD | {"document_id": "document_deleted"}
    check(upload(read_back), made.id)
    with pytest.raises(InputError, match=r"names 'a.txt' in two lines. Keep one of them."):
        check(upload(read_back, GOLD), made.id)


@pytest.mark.parametrize(("name", "says"), [("empty.txt", "could not be read"), ("long.txt", "is too long")])
def test_an_example_that_no_prompt_can_show_ends_the_extraction_before_anything_is_paid(
    session: Session, make_extraction: Any, run: Run, answering: Answering, upload: Any, name: str, says: str
) -> None:
    papers = PAPERS | {"empty.txt": "", "long.txt": "word " * (examples.MAX_TEXT_BYTES // 5 + 1)}
    extraction = run(make_extraction(papers, plan={"examples_of": upload(GOLD | {"document": name})}))
    assert (extraction.state, answering.asked) == (ExtractionState.FAILED, [])
    assert says in (extraction.reason or "")


def test_examples_leave_room_for_the_document_in_the_context_of_the_model(
    session: Session, make_extraction: Any, run: Run, upload: Any
) -> None:
    fleet.register(session, worker_id="worker_1", model="m", max_chunks=1, max_model_len=1200)
    papers = PAPERS | {"a.txt": "vendor: Ash Ltd\n" + "word " * 200}
    extraction = run(make_extraction(papers, plan={"examples_of": upload(GOLD)}))
    assert extraction.state == ExtractionState.FAILED
    assert "has no room for three such ones" in (extraction.reason or "")
    plan = lifecycle.stored_plan(extraction)
    assert plan.context == 1200
    assert replace(plan, context=None).job().window is None


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_killed_while_documents_begin_to_be_asked_another_worker_asks_them_once_by_one_plan(
    session: Session,
    make_extraction: Any,
    run: Run,
    answering: Answering,
    upload: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_after: bool,
) -> None:
    begin, begun = stages.begin, list[DocumentStage]()

    def deadly(session: Session, extraction: Extraction, stage: DocumentStage, *given: Any, **named: Any) -> None:
        begun.append(stage)
        is_killed = begun.count(DocumentStage.ASK) == 1 and stage is DocumentStage.ASK
        if is_after or not is_killed:
            begin(session, extraction, stage, *given, **named)
        if is_killed:
            raise KeyboardInterrupt

    monkeypatch.setattr(stages, "begin", deadly)
    extraction = make_extraction(PAPERS, plan={"examples_of": upload(GOLD)})
    with pytest.raises(KeyboardInterrupt):
        run(extraction)
    session.rollback()
    session.execute(text("UPDATE flow SET claimed_until = now() - interval '1 second'"))
    session.commit()
    run(extraction)
    assert extraction.state == ExtractionState.COMPLETED, extraction.reason
    assert len(answering.asked) == len(PAPERS)
    kept = text("SELECT id FROM file WHERE deleted_at IS NULL AND filename LIKE '%plan.json'")
    assert session.scalars(kept).all() == [extraction.plan_file_id]
