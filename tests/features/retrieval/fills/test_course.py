"""Tests of lines with passages: their batch waits for retrieval and runs with them in its prompts; only lines fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import served_models
from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import lifecycle, retrying, sweeps
from jobs.batches.deletion import delete_batch
from jobs.errors import ConflictError, ServiceError
from jobs.forecasts.outlooks import outlooks
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, File, Tenant
from tests.features.retrieval.fills.finding import CATS, DOGS, EMBEDDING_MODEL, MOST_READ, Finding, line

Submit = Callable[..., Batch]


@pytest.fixture
def embedding(finding: Finding, session: Session) -> Finding:
    """The same index, with queries that become vectors."""
    served_models.add_model(session, EMBEDDING_MODEL, "/models/minilm", serves=LineKind.POOL, input_price_picos=1000)
    session.commit()
    finding.embedded = frozenset({"index_1"})
    return finding


def content_of(filled: dict[str, Any]) -> str:
    return str(filled["body"]["messages"][0]["content"])


def waits_for(session: Session, batch: Batch) -> str:
    session.expire_all()
    return outlooks(session, [batch])[batch.id].waits_for or ""


def test_passages_stand_in_the_prompt_and_beside_it_which_they_are(finding: Finding, submit: Submit) -> None:
    batch = submit([line("a"), line("b", "dogs cats")])
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    first, second = finding.filled_lines(batch.id)
    assert content_of(first) == f"Answer from [1] cats.txt\n{CATS}"
    assert content_of(second) == f"Answer from [1] cats.txt\n{CATS}\n\n[2] dogs.txt\n{DOGS}"
    assert "context" not in first["body"]
    cited = {"document": "cats.txt", "document_id": "document_cats.txt", "start": 0, "end": len(CATS)}
    assert first["context"] == {"index": "index_1", "num_tokens": 7, "passages": [{"number": 1, **cited}]}


def test_a_query_is_asked_as_its_line_says(finding: Finding, submit: Submit) -> None:
    finding.prepare(submit([line("a", "dogs")]).id)
    (asked,) = finding.asked
    assert (asked.query, asked.max_tokens, asked.top_k, asked.vector) == ("dogs", 50, 2, None)


def test_until_then_nothing_runs_and_the_batch_says_what_it_waits_for(
    finding: Finding, session: Session, submit: Submit
) -> None:
    batch = submit([line("a"), line("b")])
    assert finding.validate(batch.id) is BatchState.VALIDATING
    (lookup_id,) = finding.lookup_ids(batch.id)
    assert finding.validate(batch.id) is None
    assert sweeps.pick_for_validation(session, again_seconds=0) == [lookup_id]
    session.commit()
    assert finding.validate(lookup_id) is BatchState.IN_PROGRESS
    said = waits_for(session, batch)
    assert f"by batch '{lookup_id}': 0 of 2 are done. No running worker prepares" in said
    assert session.scalars(select(Chunk).where(Chunk.batch_id == batch.id)).all() == []


def test_lines_without_a_context_are_run_as_they_are(finding: Finding, submit: Submit, session: Session) -> None:
    plain = json.loads(line("b", None)) | {"context": "my own"}
    content = "\n".join([line("a"), "", json.dumps(plain), line("c")]).encode()
    batch = submit(content)
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    lines = finding.filled_lines(batch.id)
    assert [one.get("custom_id") for one in lines] == ["a", None, "b", "c"]
    assert content_of(lines[2]) == "Answer from {{context}}"
    assert "context" not in lines[2]
    (chunk,) = session.scalars(select(Chunk).where(Chunk.batch_id == batch.id))
    assert (chunk.first_line, chunk.num_lines, chunk.num_requests) == (0, 4, 3)
    session.refresh(batch)
    assert chunk.byte_end == session.get_one(File, batch.input_file_id).size_bytes


def test_a_batch_without_contexts_has_no_lookup(finding: Finding, submit: Submit, session: Session) -> None:
    batch = submit([line("a", None)])
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS
    session.refresh(batch)
    assert (finding.lookups(batch.id), batch.source_file_id) == ([], None)


def test_a_line_without_passages_fails_alone_even_where_bad_lines_fail_the_batch(
    finding: Finding, submit: Submit, session: Session
) -> None:
    batch = submit([line("gone", index="index_2"), line("good"), line("empty", "  ")])
    assert batch.invalid_lines == InvalidLines.FAIL
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    errors = finding.errors(batch.id)
    assert errors["gone"] == (
        "index_not_found", "line 1: no passages for its prompt: No index found with id 'index_2'."
    )  # fmt: skip
    assert errors["empty"][0] == "empty_query"
    session.refresh(batch)
    assert batch.num_failed == len(errors)
    session.commit()
    assert audit(session) == []


def test_a_batch_whose_every_line_lacks_passages_completes(finding: Finding, submit: Submit, session: Session) -> None:
    batch = submit([line("a", index="index_2"), line("b", index="index_2")])
    assert finding.prepare(batch.id) is BatchState.FINALIZING
    assert finding.finalise(batch.id) is BatchState.COMPLETED
    session.refresh(batch)
    assert (batch.model, batch.num_requests, batch.num_failed, batch.output_file_id) == ("m", 2, 2, None)


def test_nothing_found_leaves_the_place_empty(finding: Finding, submit: Submit) -> None:
    batch = submit([line("a", "horses")])
    finding.prepare(batch.id)
    (filled,) = finding.filled_lines(batch.id)
    assert (content_of(filled), filled["context"]["passages"]) == ("Answer from ", [])


def test_bad_lines_are_skipped_once_and_fail_the_batch_where_it_says_so(
    finding: Finding, submit: Submit, session: Session
) -> None:
    lines = [line("a"), "{", line("b", context={"index": "index_1"}), line("c")]
    strict = submit(lines)
    assert finding.validate(strict.id) is BatchState.FAILED
    session.refresh(strict)
    assert [(error["line"], error["param"]) for error in strict.errors or []] == [(2, None), (3, "body.context.query")]
    skipping = submit(lines, invalid_lines="skip")
    assert finding.prepare(skipping.id) is BatchState.IN_PROGRESS
    session.refresh(skipping)
    assert (skipping.num_requests, skipping.num_failed) == (4, 2)
    assert finding.content(skipping.id).splitlines()[1:3] == [each.encode() for each in lines[1:3]]


def test_queries_of_an_index_with_vectors_are_embedded_first_in_a_batch_that_is_billed(
    embedding: Finding, submit: Submit, session: Session
) -> None:
    batch = submit([line("a"), line("b", "dogs")])
    assert embedding.prepare(batch.id) is BatchState.IN_PROGRESS
    lookups = embedding.lookups(batch.id)
    assert [lookup.name for lookup in lookups] == ["embed", "find"]
    assert embedding.embedded_inputs == ["query: cats", "query: dogs"]
    assert [len(asked.vector or b"") for asked in embedding.asked] == [8, 8]
    queries = session.get_one(Batch, lookups[0].batch_id)
    assert (queries.endpoint, queries.input_tokens) == ("/v1/embeddings", 10)
    assert (queries.request_metadata or {})["stage_of"] == batch.id


def test_a_query_that_cannot_be_embedded_is_its_lines_error(embedding: Finding, submit: Submit) -> None:
    batch = submit([line("a", "too long"), line("b")])
    embedding.prepare(batch.id)
    assert list(embedding.errors(batch.id)) == ["a"]
    assert embedding.errors(batch.id)["a"][0] == "context_length_exceeded"


def test_a_query_that_may_be_cut_is_embedded_as_far_as_the_model_reads(embedding: Finding, submit: Submit) -> None:
    long = "cats, too long" + " and dogs" * (MOST_READ // 8)
    wanted = {"index": "index_1", "truncate": True}
    batch = submit([line("a", context=wanted | {"query": long}), line("b", context=wanted | {"query": "cats"})])
    assert embedding.prepare(batch.id) is BatchState.IN_PROGRESS
    assert [asked.query for asked in embedding.asked] == [long, "cats"]
    assert embedding.cut_inputs == [f"query: {long}"], "a worker that knows no truncate embeds what is short"


def test_an_index_without_vectors_beside_one_with_them_is_searched_by_words(embedding: Finding, submit: Submit) -> None:
    embedding.passages["words"] = {"cats.txt": CATS}
    embedding.prepare(submit([line("a", index="words"), line("b")]).id)
    assert [asked.vector is None for asked in embedding.asked] == [True, False]


def test_embedding_waits_for_room_in_the_budget(
    embedding: Finding, submit: Submit, session: Session, tenant: Tenant
) -> None:
    batch = submit([line("a")])
    budgets.set_limit(session, tenant.id, 1)
    session.commit()
    assert embedding.validate(batch.id) is BatchState.VALIDATING
    assert embedding.lookups(batch.id) == []
    assert "as soon as your limits have room" in waits_for(session, batch)
    assert embedding.validate(batch.id) is None
    budgets.set_limit(session, tenant.id, None)
    session.commit()
    assert embedding.prepare(batch.id) is BatchState.IN_PROGRESS


def test_a_lookup_that_is_cancelled_fails_lines_which_a_retry_asks_for_again(
    finding: Finding, submit: Submit, session: Session, storage: Storage
) -> None:
    batch = submit([line("a")])
    finding.validate(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    lifecycle.cancel_batch(session, batch.tenant_id, lookup_id)
    session.commit()
    finding.finalise(lookup_id)
    finding.advance(batch.id)
    finding.validate(batch.id)
    assert finding.errors(batch.id)["a"][0] == "context_unavailable"
    assert finding.finalise(batch.id) is BatchState.COMPLETED
    session.expire_all()
    source = retrying.source_of(session, batch)
    assert [json.loads(each) for each in retrying.failed_lines(storage, source)] == [json.loads(line("a"))]


def test_cancelling_a_batch_cancels_what_looks_for_its_passages(
    finding: Finding, submit: Submit, session: Session
) -> None:
    batch = submit([line("a")])
    finding.validate(batch.id)
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    session.commit()
    (lookup_id,) = finding.lookup_ids(batch.id)
    assert session.get_one(Batch, lookup_id).state == BatchState.CANCELLING
    assert finding.finalise(batch.id) is BatchState.CANCELLED
    with pytest.raises(ConflictError, match="is being cancelled") as refused:
        delete_batch(session, batch.tenant_id, batch.id, by="tenant")
    assert refused.value.code == "batch_not_deletable"
    session.rollback()
    finding.finalise(lookup_id)
    assert finding.advance(batch.id).id == f"fill_{batch.id.removeprefix('batch_')}"
    delete_batch(session, batch.tenant_id, batch.id, by="tenant")


def test_deleting_a_batch_deletes_what_was_found_for_it(finding: Finding, submit: Submit, session: Session) -> None:
    batch = submit([line("a", index="index_2")])
    finding.prepare(batch.id)
    finding.finalise(batch.id)
    delete_batch(session, batch.tenant_id, batch.id, by="tenant")
    session.commit()
    session.expire_all()
    left = session.scalars(select(File).where(File.deleted_at.is_(None))).all()
    assert [file.id for file in left] == [batch.source_file_id]
    assert session.scalars(select(Batch).where(Batch.deleted_at.is_(None))).all() == []


def test_a_store_that_is_away_however_long_delays_a_batch_only(
    finding: Finding, submit: Submit, session: Session, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = submit([line("a"), line("b", "dogs")])
    finding.validate(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    finding.work_off(lookup_id)

    def dies(*_: object, **__: object) -> None:
        raise ServiceError("away")

    with monkeypatch.context() as patched:
        patched.setattr("features.retrieval.fills.recipe.files.create_file", dies)
        for _ in range(8):  # more often than any other flow is tried
            finding.advance(batch.id)
            session.execute(text("UPDATE flow SET look_at = NULL"))
            session.commit()
    assert "tried again: away" in waits_for(session, batch)
    finding.advance(batch.id)
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS
    assert finding.lookup_ids(batch.id) == [lookup_id]
    assert [one["custom_id"] for one in finding.filled_lines(batch.id)] == ["a", "b"]


def test_lines_are_copies_where_their_passages_are_the_same_too(
    finding: Finding, submit: Submit, session: Session
) -> None:
    lines = [line(name, query, temperature=0) for name, query in (("a", "cats"), ("b", "cats"), ("c", "dogs"))]
    batch = submit(lines)
    finding.prepare(batch.id)
    (chunk,) = session.scalars(select(Chunk).where(Chunk.batch_id == batch.id))
    assert chunk.copies == [1, 0]


def test_the_limit_on_open_batches_holds_no_lookup_up(
    maker: sessionmaker[Session], storage: Storage, submit: Submit, settings: Settings
) -> None:
    full = settings.model_copy(update={"tenant_open_batches": 1, "max_open_batches": 1})
    finding = Finding(maker, storage, full, passages={"index_1": {"cats.txt": CATS}})
    assert finding.prepare(submit([line("a")]).id) is BatchState.IN_PROGRESS
