"""Tests of searching completed indexes by words, and by words and vectors, only by their tenant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy.orm import Session

from features.documents.extraction.retrieval.choosing import LeftOut
from features.retrieval.lifecycle import INDEXES
from features.retrieval.parts import parts_of
from features.retrieval.searching import Found, Query, Searcher
from features.retrieval.tables import PassageIndex
from jobs.accounts import tenants
from jobs.errors import ConflictError, InputError, NotFoundError, ServiceError
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.features.retrieval.stored_indexes import add_index

SEGMENTS = [
    {"boats": ["the ferry leaves the harbour", "tickets cost nine crowns"], "trees": ["oaks grow slowly"]},
    {"ships": ["a ferry and another ferry", "sailors sleep"]},
]
VECTORS = [[[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [[0.6, 0.8], [float("nan")] * 2]]

MakeIndex = Callable[..., PassageIndex]


@pytest.fixture
def searcher(storage: Storage) -> Searcher:
    return Searcher(storage, max_bytes=2**20)


@pytest.fixture
def make_index(session: Session, storage: Storage, tenant: Tenant) -> MakeIndex:
    return lambda *args, **columns: add_index(session, storage, tenant, *args, **columns)


def shown(found: Found) -> list[tuple[str, str]]:
    return [(passage.document, passage.text) for passage in found.chosen]


def test_passages_are_found_by_their_words_across_segments(
    session: Session, make_index: MakeIndex, searcher: Searcher
) -> None:
    parts = parts_of(session, make_index(SEGMENTS))
    ferry, none = searcher.search(parts, [Query(text="ferries"), Query(text="zebra")], top_k=5, max_tokens=None)
    assert shown(ferry) == [("ships", "a ferry and another ferry"), ("boats", "the ferry leaves the harbour")]
    first = ferry.chosen[0]
    assert (first.document_id, first.start, first.end, first.rank) == ("document_ships", 0, 25, 0)
    assert first.shown == "ships\na ferry and another ferry"
    assert first.score > ferry.chosen[1].score
    assert ferry.num_tokens == 10
    assert none == Found()


def test_what_has_no_room_is_told(session: Session, make_index: MakeIndex, searcher: Searcher) -> None:
    parts = parts_of(session, make_index(SEGMENTS))
    (found,) = searcher.search(parts, [Query(text="ferry tickets")], top_k=2, max_tokens=9)
    assert shown(found) == [("boats", "tickets cost nine crowns"), ("ships", "a ferry and another ferry")]
    assert [(one.document, one.reason, one.num_tokens) for one in found.dropped] == [("boats", LeftOut.RANK, 5)]
    (found,) = searcher.search(parts, [Query(text="ferry tickets")], top_k=2, max_tokens=4)
    assert shown(found) == [("boats", "tickets cost nine crowns")]
    assert {one.reason for one in found.dropped} == {LeftOut.TOKENS}


def test_vectors_find_what_has_no_word_of_the_question(
    session: Session, make_index: MakeIndex, searcher: Searcher
) -> None:
    parts = parts_of(session, make_index(SEGMENTS, vectors=VECTORS))
    assert (parts.embedding_model, parts.query_prefix) == ("minilm", "query: ")
    near = Query(text="zebra", vector=np.array([0, 1], np.float32))
    (found,) = searcher.search(parts, [near], top_k=2, max_tokens=None)
    assert {passage.text for passage in found.chosen} == {"tickets cost nine crowns", "a ferry and another ferry"}
    (by_words,) = searcher.search(parts, [Query(text="zebra")], top_k=2, max_tokens=None)
    assert by_words == Found()


def test_a_passage_without_a_vector_is_found_by_its_words_alone(
    session: Session, make_index: MakeIndex, searcher: Searcher
) -> None:
    parts = parts_of(session, make_index(SEGMENTS, vectors=VECTORS))
    for direction in ([0, 1], [0, -1], [1, 0], [-1, -1]):
        (found,) = searcher.search(
            parts, [Query(text="zebra", vector=np.array(direction, np.float32))], top_k=5, max_tokens=None
        )
        assert len(found.chosen) == 4
        assert "sailors sleep" not in {passage.text for passage in found.chosen}
    (found,) = searcher.search(
        parts, [Query(text="sailors", vector=np.array([0, 1], np.float32))], top_k=5, max_tokens=None
    )
    assert "sailors sleep" in {passage.text for passage in found.chosen}


def test_a_vector_of_another_size_is_refused(session: Session, make_index: MakeIndex, searcher: Searcher) -> None:
    parts = parts_of(session, make_index(SEGMENTS, vectors=VECTORS))
    with pytest.raises(InputError, match="3 dimensions, the vectors of the index have 2") as caught:
        searcher.search(parts, [Query(text="a", vector=np.zeros(3, np.float32))], top_k=1, max_tokens=None)
    assert caught.value.code == "index_mismatch"
    words = parts_of(session, make_index(SEGMENTS))
    with pytest.raises(InputError, match="no vectors"):
        searcher.search(words, [Query(text="a", vector=np.zeros(2, np.float32))], top_k=1, max_tokens=None)


def test_segments_that_were_made_in_another_way_are_not_searched(
    session: Session, make_index: MakeIndex, searcher: Searcher
) -> None:
    parts = parts_of(session, make_index(SEGMENTS))
    other = replace(parts, signature=replace(parts.signature, tokenizer_sha256="another"))
    with pytest.raises(ServiceError, match=r"tokenizer_sha256 'another' and 't'|tokenizer_sha256 't' and 'another'"):
        searcher.search(other, [Query(text="ferry")], top_k=1, max_tokens=None)


def test_an_index_is_its_tenants_alone(session: Session, make_index: MakeIndex, tenant: Tenant) -> None:
    index = make_index(SEGMENTS)
    other = tenants.create_tenant(session, "other")
    assert INDEXES.get(session, tenant.id, index.id) is index
    with pytest.raises(NotFoundError) as of_another:
        INDEXES.get(session, other.id, index.id)
    with pytest.raises(NotFoundError) as of_nobody:
        INDEXES.get(session, other.id, "index_0")
    assert of_another.value.message.replace(index.id, "index_0") == of_nobody.value.message


@pytest.mark.parametrize(("state", "said"), [("in_progress", "cannot be searched yet"), ("failed", "no room")])
def test_an_index_that_is_not_completed_cannot_be_searched(
    session: Session, make_index: MakeIndex, state: str, said: str
) -> None:
    index = make_index(SEGMENTS, state=state, reason="no room")
    with pytest.raises(ConflictError, match=said):
        parts_of(session, index)


def test_an_index_without_passages_finds_nothing(session: Session, make_index: MakeIndex, searcher: Searcher) -> None:
    parts = parts_of(session, make_index([]))
    assert searcher.search(parts, [Query(text="ferry")], top_k=5, max_tokens=10) == [Found()]


def test_an_index_is_read_once_and_forgotten_for_others(
    session: Session, make_index: MakeIndex, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (parts_of(session, make_index(segments)) for segments in (SEGMENTS[1:], SEGMENTS))
    searcher = Searcher(storage, max_bytes=1)
    heads: list[str] = []
    whole = storage.iter_range
    lock = threading.Lock()

    def counted(key: str, start: int, end: int, **kwargs: int) -> object:
        with lock:
            heads.append(key)
        return whole(key, start, end, **kwargs)

    monkeypatch.setattr(storage, "iter_range", counted)
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(lambda _: searcher.search(small, [Query(text="ferry")], top_k=1, max_tokens=None), range(8))
        )
    assert len({shown(one)[0] for (one,) in found}) == 1
    assert heads == list(small.object_keys)
    searcher.search(large, [Query(text="ferry")], top_k=1, max_tokens=None)
    searcher.search(small, [Query(text="ferry")], top_k=1, max_tokens=None)
    assert heads == [*small.object_keys, *large.object_keys, *small.object_keys]


def test_an_index_whose_objects_are_gone_is_told_as_deleted(
    session: Session, make_index: MakeIndex, storage: Storage, searcher: Searcher
) -> None:
    parts = parts_of(session, make_index(SEGMENTS))
    storage.delete(parts.object_keys[0])
    with pytest.raises(NotFoundError) as caught:
        searcher.search(parts, [Query(text="ferry")], top_k=1, max_tokens=None)
    assert caught.value.code == "index_gone"
