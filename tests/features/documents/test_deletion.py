"""Tests of deletion: a deleted document's text goes unless another document has it; old extractions are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.documents import deletion
from features.documents.collections import collection
from features.documents.deletion import purge_documents, purge_extractions
from features.documents.extraction.scoring import reviews as scoring
from features.documents.reviewing import reviews
from features.documents.tables import Extraction
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.features.documents.answering import Answering
from tests.features.documents.papers import GOOD
from tests.flows.advancers import Extractions

Run = Callable[[Extraction], Extraction]


def read_texts(storage: Storage) -> int:
    return sum(found.name.endswith(".doc") for found in storage.iter_objects())


def test_with_a_collection_goes_what_was_read_of_its_documents_and_of_no_other(
    session: Session, maker: sessionmaker[Session], storage: Storage, make_extraction: Any, run: Run
) -> None:
    first = run(make_extraction({"a.txt": GOOD, "b.txt": "vendor: Birch"}))
    second = run(make_extraction({"same.txt": GOOD}))
    assert (read_texts(storage), purge_documents(maker, storage)) == (2, 0)
    collection.delete_collection(session, first.tenant_id, first.collection_id, by="key_1")
    session.commit()
    assert purge_documents(maker, storage) == 2
    assert read_texts(storage) == 1
    collection.delete_collection(session, second.tenant_id, second.collection_id, by="key_1")
    session.commit()
    assert purge_documents(maker, storage) == 1
    assert read_texts(storage) == 0
    assert session.scalar(text("SELECT count(*) FROM collection_document")) == 0


def test_a_text_stays_while_an_extraction_reads_documents_that_may_have_it(
    session: Session,
    maker: sessionmaker[Session],
    storage: Storage,
    make_extraction: Any,
    run: Run,
    extractions: Extractions,
    answering: Answering,
) -> None:
    first, second = run(make_extraction({"a.txt": GOOD})), make_extraction({"same.txt": GOOD})
    extractions.advance(second.id)
    answering.work_off()  # it was read, but no row records it yet
    collection.delete_collection(session, first.tenant_id, first.collection_id, by="key_1")
    session.commit()
    assert (purge_documents(maker, storage), read_texts(storage)) == (0, 1)
    assert run(second).num_done == 1
    assert (purge_documents(maker, storage), read_texts(storage)) == (1, 1)


def test_documents_and_extractions_of_a_deleted_tenant_go(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, make_extraction: Any, run: Run
) -> None:
    run(make_extraction({"a.txt": GOOD}))
    session.execute(text("UPDATE tenant SET deleted_at = now()"))
    session.commit()
    assert purge_documents(maker, storage) == 1
    assert read_texts(storage) == 0
    assert purge_extractions(maker, age=timedelta(days=90)) == 1
    assert session.scalar(text("SELECT count(*) FROM flow_node")) == 0


def test_only_extractions_that_ended_long_ago_are_forgotten(
    session: Session, maker: sessionmaker[Session], make_extraction: Any, run: Run
) -> None:
    old = run(make_extraction({"a.txt": GOOD}))
    session.execute(text("UPDATE flow SET ended_at = now() - interval '91 days'"))
    session.commit()
    young, under_way = run(make_extraction({"b.txt": GOOD})), make_extraction({"c.txt": GOOD})
    session.execute(text("UPDATE flow SET created_at = now() - interval '1 year'"))
    session.commit()
    assert purge_extractions(maker, age=timedelta(days=90)) == 1
    assert set(session.scalars(text("SELECT id FROM extraction"))) == {young.id, under_way.id} != {old.id}


def test_reviews_of_old_extractions_go_some_in_a_transaction(
    session: Session, maker: sessionmaker[Session], make_extraction: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "SAMPLED", 1.0)
    for _ in range(2):
        run(make_extraction({"a.txt": GOOD, "b.txt": GOOD}))
    session.execute(text("UPDATE flow SET ended_at = now() - interval '91 days'"))
    session.commit()
    gone: list[int] = []

    def counted(*given: Any, **named: Any) -> int:
        gone.append(forget_some(*given, **named))
        return gone[-1]

    forget_some = reviews.forget_some
    monkeypatch.setattr(reviews, "forget_some", counted)
    monkeypatch.setattr(deletion, "_REVIEWS", 3)
    assert purge_extractions(maker, age=timedelta(days=90)) == 2
    assert gone == [3, 3, 2]
    assert session.scalar(text("SELECT count(*) FROM review")) == 0
