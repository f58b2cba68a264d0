"""Tests of extracting from an index as one document: passages are found for each field, each value has its document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle, stages
from features.documents.collections.embedders import Embedder
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.lifecycle import CreateExtraction
from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from features.retrieval.corpora import asked_index
from features.retrieval.tables import FillNode, PassageIndex
from jobs import files, served_models
from jobs.accounts import tenants
from jobs.batches import lifecycle as batches
from jobs.chunks import fleet
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.storage import Storage
from jobs.tables import Batch, File, Tenant
from tests.all_settings import Settings
from tests.features.documents.answering import FLAKY, Answering
from tests.features.retrieval.stored_indexes import add_index
from tests.flows.advancers import Extractions, extractions_of

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
PAPERS = {"a.txt": ["vendor: Ash Ltd", "Nothing else."], "b.txt": ["The sum follows.", "total: 12.50"]}

Ask = Callable[..., Extraction]


@pytest.fixture
def index(session: Session, storage: Storage, tenant: Tenant) -> PassageIndex:
    return add_index(session, storage, tenant, [PAPERS], num_passages=4, name="all papers")


@pytest.fixture
def ask(session: Session, tenant: Tenant, settings: Settings) -> Ask:
    """Accept an extraction of an index; keywords are of the create call; committed."""
    served_models.add_model(session, "m", "/models/m", input_price_picos=1_000_000, output_price_picos=2_000_000)

    def ask(index_id: str, *, params: Mapping[str, Any] | None = None, **wishes: Any) -> Extraction:
        plan = StoredPlan(schema=orjson.dumps(SCHEMA).decode(), model="m", params=params or {})
        wanted = CreateExtraction(index_id=index_id, plan=plan, **wishes)
        extraction = lifecycle.create_extraction(
            session, tenant, wanted, settings, key_id="key_1", find_index=asked_index
        )
        session.commit()
        return extraction

    return ask


def record_of(session: Session, storage: Storage, extraction: Extraction) -> dict[str, Any]:
    session.refresh(extraction)
    assert extraction.output_file_id is not None, extraction.reason
    key = session.get_one(File, extraction.output_file_id).object_key
    (record,) = map(orjson.loads, b"".join(storage.iter_chunks(key)).splitlines())
    found: dict[str, Any] = record
    return found


def test_each_field_comes_with_the_document_and_the_place_that_it_is_from(
    session: Session, storage: Storage, index: PassageIndex, ask: Ask, run: Any, answering: Answering
) -> None:
    extraction = run(ask(index.id))
    assert extraction.state == ExtractionState.COMPLETED, extraction.reason
    record = record_of(session, storage, extraction)
    assert (record["document_id"], record["document"], record["status"]) == (index.id, "all papers", "done")
    assert record["fields"] == {"vendor": "Ash Ltd", "total": "12.50"}
    places = {each["path"]: each["spans"][0] for each in record["evidence"]}
    assert [(each["document"], each["start"], each["end"]) for each in places.values()] == [
        ("a.txt", 8, 15),
        ("b.txt", 24, 29),
    ]
    assert (extraction.num_documents, extraction.num_done) == (1, 1)
    assert [len(body["response_format"]["json_schema"]["schema"]["properties"]) for body in answering.asked] == [1, 1]
    assert "[1] a.txt\na.txt\nvendor: Ash Ltd" in answering.asked[0]["messages"][-1]["content"]


def test_its_batches_are_those_of_every_extraction_and_of_lines_with_passages(
    session: Session, index: PassageIndex, ask: Ask, run: Any
) -> None:
    extraction = run(ask(index.id))
    begun = stages.stages_of(session, extraction.id)
    assert [stage.num_lines for stage in begun] == [0, 2, 1, 0, 0]
    found = session.scalars(select(Batch).order_by(Batch.created_at, Batch.id)).all()
    assert [(batch.endpoint, batch.num_completed) for batch in found] == [
        ("/v1/chat/completions", 2),
        ("/v1/passages/find", 2),
        ("/v1/documents/ground", 1),
    ]
    assert {batch.api_key_id for batch in found} == {"key_1"}


@pytest.mark.parametrize(
    ("reads", "cut"),
    [(64, []), (13, ["vendor"])],
    ids=["all can be read", "one is longer"],
)
def test_only_a_question_that_may_be_too_long_for_the_embedder_says_that_it_may_be_cut(
    session: Session,
    storage: Storage,
    settings: Settings,
    maker: sessionmaker[Session],
    index: PassageIndex,
    ask: Ask,
    answering: Answering,
    reads: int,
    cut: list[str],
) -> None:
    extraction = ask(index.id)
    embedder = Embedder(model="e", query_prefix="", max_tokens=reads)
    asking = extractions_of(maker, storage, settings, embedder_of=lambda *_of: embedder)
    asking.advance(extraction.id)
    stage = next(stage for stage in stages.stages_of(session, extraction.id) if stage.num_lines)
    key = session.get_one(File, session.get_one(Batch, stage.batch_id).input_file_id).object_key
    contexts = [orjson.loads(line)["body"]["context"] for line in b"".join(storage.iter_chunks(key)).splitlines()]
    assert len(contexts) == 2
    assert [each["query"] for each in contexts if "truncate" in each] == cut


def test_what_is_doubtful_is_asked_again_of_the_same_passages(
    session: Session, storage: Storage, tenant: Tenant, ask: Ask, run: Any, answering: Answering
) -> None:
    papers = {"a.txt": [f"vendor: Birch {FLAKY} Ltd"], "b.txt": ["total: 3.00"]}
    index = add_index(session, storage, tenant, [papers], num_passages=2)
    record = record_of(session, storage, run(ask(index.id)))
    assert record["fields"] == {"vendor": f"Birch {FLAKY} Ltd", "total": "3.00"}
    assert record["evidence"][0]["spans"][0]["document"] == "a.txt"
    assert record["usage"]["input_tokens"] == 21
    assert len(answering.asked) == 3
    assert papers["a.txt"][0] in answering.asked[-1]["messages"][-1]["content"]


def test_fewer_passages_are_shown_where_the_model_takes_fewer_tokens(
    session: Session, index: PassageIndex, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contexts_of(session: Session, context: int) -> None:
        monkeypatch.setattr(fleet, "contexts", lambda _: {"m": context})

    contexts_of(session, 700)
    extraction = ask(index.id, params={"max_tokens": 256}, top_k=50)
    assert extraction.plan["corpus"] == {
        "index_id": index.id, "name": "all papers", "passage_tokens": 16, "top_k": 50
    }  # fmt: skip
    contexts_of(session, 400)
    with pytest.raises(InputError, match="no room for a passage of the index, which may have 16") as refused:
        ask(index.id, params={"max_tokens": 256})
    assert (refused.value.param, refused.value.code) == ("max_tokens", "context_length_exceeded")


def test_an_index_that_cannot_be_asked_is_refused(
    session: Session, storage: Storage, tenant: Tenant, index: PassageIndex, ask: Ask
) -> None:
    other = add_index(session, storage, tenants.create_tenant(session, "other"), [PAPERS], num_passages=4)
    empty = add_index(session, storage, tenant, [])
    for index_id in (other.id, "index_none"):
        with pytest.raises(NotFoundError, match="No index found"):
            ask(index_id)
    with pytest.raises(InputError, match="has no passage"):
        ask(empty.id)
    session.execute(text("UPDATE passage_index SET signature = NULL"))
    session.execute(text("UPDATE flow SET state = 'in_progress' WHERE recipe = 'index'"))
    session.expire_all()
    with pytest.raises(ConflictError, match="cannot be searched yet"):
        ask(index.id)


def test_an_index_that_is_deleted_before_it_is_searched_is_the_records_error(
    session: Session, storage: Storage, index: PassageIndex, ask: Ask, run: Any
) -> None:
    extraction = ask(index.id)
    session.execute(text("UPDATE passage_index SET deleted_at = now()"))
    session.commit()
    record = record_of(session, storage, run(extraction))
    assert (record["status"], record["error"]["code"]) == ("failed", "index_not_found")


def test_a_repeated_call_returns_what_was_made_though_the_index_is_gone(
    session: Session, index: PassageIndex, ask: Ask
) -> None:
    made = ask(index.id, idempotency_key="k")
    session.execute(text("UPDATE passage_index SET deleted_at = now()"))
    assert ask(index.id, idempotency_key="k").id == made.id
    with pytest.raises(ConflictError):
        ask(index.id, idempotency_key="k", top_k=3)


def test_a_cancelled_one_cancels_the_batches_that_look_for_its_passages(
    session: Session, tenant: Tenant, index: PassageIndex, ask: Ask, extractions: Extractions, answering: Answering
) -> None:
    extraction = ask(index.id)
    extractions.advance(extraction.id)
    lifecycle.cancel_extraction(session, tenant.id, extraction.id, reason="enough")
    session.commit()
    extractions.advance(extraction.id)
    answering.work_off()
    extractions.advance(extraction.id)
    session.refresh(extraction)
    assert extraction.state == ExtractionState.CANCELLED
    assert not answering.asked


def test_what_was_found_and_is_deleted_before_it_is_looked_at_fails_it(
    session: Session, storage: Storage, tenant: Tenant, index: PassageIndex, ask: Ask, run: Any,
    extractions: Extractions, answering: Answering,
) -> None:  # fmt: skip
    extraction = ask(index.id)
    extractions.advance(extraction.id)
    for _ in range(4):  # it is validated, its passages are found, it is validated again, and answered
        answering.work_off()
    lookup = session.scalars(select(FillNode)).one()
    found = batches.get_batch(session, tenant.id, str(lookup.batch_id))
    assert found.output_file_id is not None
    files.delete_file(session, tenant.id, found.output_file_id, by="key_1")
    session.commit()
    assert run(extraction).state == ExtractionState.FAILED
    assert "the passages found for its questions were deleted" in str(extraction.reason)
