"""Queries of a batch that looks for passages: each is answered from its tenant's index, or fails alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.retrieval.tables import PassageIndex
from jobs.accounts import tenants
from jobs.lines.body_context import ContextRequest
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_body
from tests.features.retrieval.stored_indexes import add_index
from tests.workers.preparing.builders import Library, Preparer

PAPERS = {"cats.txt": ["Cats purr softly.", "Cats hunt mice."], "dogs.txt": ["Dogs bark."]}


@pytest.fixture
def session(library: Library) -> Iterator[Session]:
    with library.sessions() as session:
        yield session


@pytest.fixture
def index(session: Session, library: Library) -> PassageIndex:
    return add_index(session, library.storage, library.tenant, [PAPERS])


def query(index_id: str, words: str, **more: Any) -> dict[str, Any]:
    limits = {name: more.pop(name) for name in ("max_tokens", "top_k") if name in more}
    return find_body(ContextRequest(index=index_id, query=words, **limits), **more)


def answer(library: Library, preparer: Preparer, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    batch_id = library.submit(FIND_ENDPOINT, bodies)
    assert preparer.run_next()
    return library.bodies(batch_id)


def test_a_query_is_answered_with_passages_in_the_order_of_their_document(
    library: Library, preparer: Preparer, index: PassageIndex
) -> None:
    (found,) = answer(library, preparer, query(index.id, "mice that cats hunt"))
    assert [(one["document"], one["start"], one["rank"]) for one in found["passages"]] == [
        ("cats.txt", 0, 1),
        ("cats.txt", 18, 0),
    ]
    assert found["passages"][1]["shown"] == "cats.txt\nCats hunt mice."
    assert (found["index"], found["num_tokens"]) == (index.id, 6)


def test_no_more_is_shown_than_the_line_allows(library: Library, preparer: Preparer, index: PassageIndex) -> None:
    few, short = answer(
        library, preparer, query(index.id, "cats hunt", top_k=1), query(index.id, "cats hunt", max_tokens=4)
    )
    assert [len(found["passages"]) for found in (few, short)] == [1, 1]


def test_nobody_searches_the_index_of_another_tenant(
    session: Session, library: Library, preparer: Preparer, index: PassageIndex
) -> None:
    other = add_index(session, library.storage, tenants.create_tenant(session, "other"), [PAPERS])
    theirs, unknown, own = answer(
        library, preparer, query(other.id, "cats"), query("index_none", "cats"), query(index.id, "cats")
    )
    assert [found["error"]["code"] for found in (theirs, unknown)] == ["index_not_found"] * 2
    assert len(own["passages"]) == 2


def test_a_query_without_its_vector_says_why(library: Library, preparer: Preparer, index: PassageIndex) -> None:
    error = {"code": "context_length_exceeded", "message": "too long"}
    (found,) = answer(library, preparer, query(index.id, "cats", error=error))
    assert (found["error"]["code"], found["error"]["message"]) == ("context_length_exceeded", "too long")


def test_an_index_with_vectors_is_searched_by_them(session: Session, library: Library, preparer: Preparer) -> None:
    vectors = [[[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]]]
    index = add_index(session, library.storage, library.tenant, [PAPERS], vectors=vectors)
    vector = base64.b64encode(np.array([0.0, 1.0], "<f4").tobytes()).decode()
    wrong = base64.b64encode(np.array([0.0, 1.0, 2.0], "<f4").tobytes()).decode()
    near, mismatch, without = answer(
        library,
        preparer,
        query(index.id, "horses", vector=vector, top_k=1),
        query(index.id, "horses", vector=wrong),
        query(index.id, "horses"),
    )
    assert [one["shown"] for one in near["passages"]] == ["cats.txt\nCats hunt mice."]
    assert mismatch["error"]["code"] == "index_mismatch"
    assert without["error"]["code"] == "context_unavailable"


def test_an_index_that_is_not_completed_is_not_searched(
    session: Session, library: Library, preparer: Preparer, index: PassageIndex
) -> None:
    session.execute(text("UPDATE flow SET state = 'in_progress'"))
    session.commit()
    (found,) = answer(library, preparer, query(index.id, "cats"))
    assert found["error"]["code"] == "index_not_ready"
