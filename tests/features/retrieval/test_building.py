"""Tests of building an index through its stages, each a batch; failures are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.collections import collection as collections
from features.documents.tables import CollectionDocument
from features.retrieval import creating, stages
from features.retrieval.building import Building
from features.retrieval.creating import CreateIndex
from features.retrieval.parts import parts_of
from features.retrieval.searching import Found, Query, Searcher
from features.retrieval.tables import IndexSegment, PassageIndex
from flows.nodes import batches_of
from jobs import served_models
from jobs.accounts.limits import set_limits
from jobs.audit.audit import audit
from jobs.errors import ConflictError, InputError, LimitError, NotFoundError, ServiceError
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.features.retrieval.answering import MADE, NO_WORDS, UNKNOWN, IndexAnswering, vector_of
from tests.flows.advancers import Indexes, indexes_of

MakeIndex = Callable[..., PassageIndex]
Run = Callable[[PassageIndex], PassageIndex]

PAPERS = {
    "boats.md": "# Ferries\n\nThe ferry leaves the harbour at nine.\n\n# Tickets\n\nTickets cost four crowns.\n",
    "trees.txt": "Oaks grow slowly, and a beech does so, too.",
}


@pytest.fixture
def search(session: Session, storage: Storage) -> Callable[..., Found]:
    searcher = Searcher(storage, max_bytes=2**20)

    def search(index: PassageIndex, question: str, **wishes: Any) -> Found:
        parts = parts_of(session, index)
        vector = None if parts.embedding_model is None else vector_of(parts.query_prefix + question)
        wanted = {"top_k": 3, "max_tokens": None} | wishes
        (found,) = searcher.search(parts, [Query(text=question, vector=vector)], **wanted)
        return found

    return search


def test_an_index_without_a_model_has_two_stages_and_is_searched_by_words(
    make_index: MakeIndex, run: Run, session: Session, search: Callable[..., Found]
) -> None:
    index = run(make_index(PAPERS, language="english"))
    assert (index.state, index.reason) == ("completed", None)
    assert (index.num_documents, index.num_indexed, index.num_passages) == (2, 2, 3)
    assert [stages.STAGES[stage.number] for stage in stages.stages_of(session, index.id)] == ["read", "cut"]
    first = search(index, "ferries").chosen[0]
    assert (first.document, first.text) == ("boats.md", "# Ferries\n\nThe ferry leaves the harbour at nine.")
    assert first.document_id in set(session.scalars(select(CollectionDocument.id)))
    session.commit()
    assert audit(session) == []


def test_an_index_with_a_model_has_a_vector_of_each_passage_behind_its_prefix(
    make_index: MakeIndex,
    run: Run,
    model: str,
    answering: IndexAnswering,
    session: Session,
    search: Callable[..., Found],
) -> None:
    index = run(make_index(PAPERS, embedding_model=model, document_prefix="doc: ", query_prefix="ask: "))
    assert index.state == "completed"
    assert sorted(answering.embedded)[0].startswith("doc: # Ferries")
    assert len(answering.embedded) == index.num_passages == 3
    assert index.num_without_vector == 0
    assert index.signature is not None
    assert index.signature["embedding"]["model_sha256"] == "m1"
    assert len(search(index, "zzz").chosen) == 3
    batches = batches_of(session, stages.stages_of(session, index.id)).values()
    assert sum(batch.input_tokens for batch in batches) == 7
    assert {batch.request_metadata["index_id"] for batch in batches if batch.request_metadata} == {index.id}
    session.commit()
    assert audit(session) == []


def test_what_cannot_be_read_or_cut_is_told_with_its_code_and_the_rest_is_indexed(
    make_index: MakeIndex, run: Run, search: Callable[..., Found]
) -> None:
    index = run(make_index({"bad.txt": "", f"{NO_WORDS}.txt": "slow", **PAPERS}))
    assert (index.state, index.num_indexed) == ("completed", 2)
    assert index.failed_codes == {"empty": 1, "time_limit": 1}
    told = {failure["document"]: failure["code"] for failure in index.failures}
    assert told == {"bad.txt": "empty", f"{NO_WORDS}.txt": "time_limit"}
    assert search(index, "ferry").chosen[0].document == "boats.md"


def test_a_passage_that_the_model_cannot_embed_is_counted_and_found_by_its_words(
    make_index: MakeIndex, run: Run, model: str, search: Callable[..., Found], session: Session
) -> None:
    index = run(make_index({**PAPERS, "odd.txt": f"a pike {UNKNOWN}"}, embedding_model=model))
    assert (index.state, index.num_without_vector) == ("completed", 1)
    last = stages.stages_of(session, index.id)[-1]
    assert (stages.STAGES[last.number], last.num_lines) == (stages.IndexStage.EMBED_AGAIN, 4)
    assert "odd.txt" in {passage.document for passage in search(index, "pike").chosen}
    assert "odd.txt" not in {passage.document for passage in search(index, "zzz", top_k=9).chosen}


def test_an_index_of_which_nothing_was_embedded_fails(make_index: MakeIndex, run: Run, model: str) -> None:
    index = run(make_index({"odd.txt": UNKNOWN}, embedding_model=model))
    assert (index.state, index.reason) == (
        "failed",
        "the model embedded none of its passages; the errors of stage embed's batch say why",
    )


def test_documents_are_divided_among_segments_that_are_searched_as_one(
    make_index: MakeIndex,
    run: Run,
    model: str,
    session: Session,
    search: Callable[..., Found],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("features.retrieval.segments._MAX_DOCUMENTS", 2)
    monkeypatch.setattr("features.retrieval.segments._MAX_INPUTS", 3)
    index = run(make_index({f"{n}.txt": f"number {n} has a word{n}" for n in range(5)}, embedding_model=model))
    rows = session.scalars(select(IndexSegment).order_by(IndexSegment.number)).all()
    assert [(row.num_documents, row.num_passages) for row in rows] == [(2, 2), (2, 2), (1, 1)]
    assert index.size_bytes == sum(row.size_bytes for row in rows)
    for number in range(5):
        found = search(index, f"word{number}", top_k=2)
        assert f"{number}.txt" in {passage.document for passage in found.chosen}


def test_two_releases_of_the_cutter_make_no_index(
    make_index: MakeIndex, run: Run, answering: IndexAnswering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.retrieval.segments._MAX_DOCUMENTS", 1)
    answering.cut_by = "another release"
    index = run(make_index(PAPERS))
    assert index.state == "failed"
    assert "two releases" in (index.reason or "")


def test_an_index_of_documents_without_a_passage_fails(make_index: MakeIndex, run: Run) -> None:
    index = run(make_index({"bad.txt": ""}))
    assert (index.state, index.reason) == ("failed", "none of its documents has a passage")
    assert index.num_indexed == 0


@pytest.mark.parametrize("at", ["keep_documents", "cut_segments", "embedded", "segments"])
def test_a_worker_that_dies_between_two_effects_leaves_an_index_that_goes_on(
    make_index: MakeIndex,
    run: Run,
    model: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    session: Session,
    answering: IndexAnswering,
    indexes: Indexes,
) -> None:
    index = make_index(PAPERS, embedding_model=model)
    real, died = getattr(Building, at), list[str]()

    def die_once(building: Building, *args: object) -> object:
        if not died:
            died.append(at)
            raise ServiceError("the store is away")
        return real(building, *args)

    monkeypatch.setattr(Building, at, die_once)
    while not died:
        indexes.advance(index.id)
        answering.work_off()
    session.execute(text("UPDATE flow SET look_at = NULL"))
    session.commit()
    index = run(index)
    assert (index.state, index.num_passages) == ("completed", 3)
    assert len(answering.embedded) == 3
    assert answering.num_read == 2
    session.commit()
    assert audit(session) == []


def test_a_batch_that_expires_fails_the_index(make_index: MakeIndex, run: Run, answering: IndexAnswering) -> None:
    answering.expires_after = 1
    index = run(make_index(PAPERS))
    assert index.state == "failed"
    assert "stage read is expired" in (index.reason or "")


def test_a_model_that_changes_while_an_index_is_built_fails_it(
    make_index: MakeIndex, run: Run, model: str, session: Session, indexes: Indexes
) -> None:
    index = make_index(PAPERS, embedding_model=model)
    served_models.note_embedding(session, model, replace(MADE, model_sha256="m2"))
    session.commit()
    index = run(index)
    assert index.state == "failed"
    assert "Build the index again" in (index.reason or "")


def test_an_index_counts_towards_what_its_tenant_keeps(
    make_index: MakeIndex, run: Run, session: Session, tenant: Tenant
) -> None:
    index = make_index(PAPERS)
    set_limits(session, tenant.id, {"stored_bytes": 2500})
    session.commit()
    index = run(index)
    assert index.state == "failed"
    assert "The index has" in (index.reason or "")


def test_an_index_of_too_many_passages_fails(
    make_index: MakeIndex,
    answering: IndexAnswering,
    session: Session,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
) -> None:
    few = indexes_of(maker, storage, settings.model_copy(update={"index_passages": 2}))
    index = make_index(PAPERS)
    answering.take_turns(session, few, index)
    assert (index.state, "it has 3 passages and 2 are allowed" in (index.reason or "")) == ("failed", True)


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"max_tokens": 8}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"overlap_tokens": 30}, "overlap_tokens"),
        ({"language": "klingon"}, "language"),
        ({"query_prefix": "ask: "}, "embedding_model"),
        ({"embedding_model": "nobody"}, "model"),
    ],
)
def test_what_cannot_be_built_is_refused(make_index: MakeIndex, wishes: dict[str, Any], param: str) -> None:
    with pytest.raises(InputError) as caught:
        make_index(PAPERS, **wishes)
    assert caught.value.param == param


def test_passages_longer_than_the_model_reads_are_refused(make_index: MakeIndex, model: str) -> None:
    with pytest.raises(InputError, match="has room for 256"):
        make_index(PAPERS, embedding_model=model, max_tokens=257)


def test_a_model_that_generates_embeds_nothing(make_index: MakeIndex, session: Session) -> None:
    served_models.add_model(session, "chat", "/models/c")
    with pytest.raises(InputError, match="does not embed"):
        make_index(PAPERS, embedding_model="chat")


def test_a_model_of_which_no_worker_said_how_it_embeds_waits_for_one(
    make_index: MakeIndex, model: str, session: Session
) -> None:
    session.execute(text("UPDATE model SET embedding = NULL"))
    session.commit()
    with pytest.raises(ConflictError, match=repr(model)):
        make_index(PAPERS, embedding_model=model)


def test_a_call_is_repeated_by_its_key_and_limited_in_number(
    session: Session, make_index: MakeIndex, tenant: Tenant, settings: Settings
) -> None:
    index = make_index(PAPERS)
    wanted = CreateIndex(collection_id=index.collection_id, idempotency_key="k")
    made = creating.create_index(session, tenant, wanted, settings, key_id="key_1")
    assert creating.create_index(session, tenant, wanted, settings, key_id="key_1") is made
    with pytest.raises(ConflictError, match="was used for another request"):
        creating.create_index(session, tenant, replace(wanted, max_tokens=64), settings, key_id="key_1")
    few = settings.model_copy(update={"tenant_indexes": 2})
    with pytest.raises(LimitError, match="You have 2 indexes"):
        creating.create_index(session, tenant, replace(wanted, idempotency_key=None), few, key_id="key_1")


def test_a_collection_stays_while_an_index_of_it_is_built(
    make_index: MakeIndex, run: Run, session: Session, tenant: Tenant, search: Callable[..., Found]
) -> None:
    index = make_index(PAPERS)
    with pytest.raises(ConflictError, match="is being built"):
        collections.delete_collection(session, tenant.id, index.collection_id, by="key_1")
    run(index)
    collections.delete_collection(session, tenant.id, index.collection_id, by="key_1")
    session.commit()
    assert search(index, "ferry").chosen


def test_an_index_of_a_collection_of_another_tenant_is_refused(
    make_index: MakeIndex, session: Session, settings: Settings
) -> None:
    from jobs.accounts import tenants

    index = make_index(PAPERS)
    other = tenants.create_tenant(session, "other")
    with pytest.raises(NotFoundError):
        creating.create_index(session, other, CreateIndex(collection_id=index.collection_id), settings, key_id="key_2")
