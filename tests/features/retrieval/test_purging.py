"""Tests of deleted indexes: gone at once, their data soon; other data stays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval import lifecycle
from features.retrieval.objects import new_key, vectors_key
from features.retrieval.purging import purge_indexes, sweep_index_objects
from features.retrieval.tables import PassageIndex
from jobs.accounts.tenants import create_tenant
from jobs.audit.audit import audit
from jobs.batches.deletion import delete_left, delete_tenant
from jobs.errors import NotFoundError
from jobs.storage import Storage, store_owner
from jobs.tables import Tenant
from tests.features.retrieval.answering import IndexAnswering
from tests.flows.advancers import Indexes

MakeIndex = Callable[..., PassageIndex]
Run = Callable[[PassageIndex], PassageIndex]
PAPERS = {"a.txt": "a ferry", "b.txt": "an oak"}


def index_objects(storage: Storage) -> list[str]:
    return [found.name for found in storage.iter_objects() if "/indexes/" in found.name]


def num_rows(session: Session) -> dict[str, int]:
    tables = ("passage_index", "flow_node", "index_segment")
    return {table: session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in tables}


def test_a_deleted_index_leaves_nothing_but_what_was_billed(
    make_index: MakeIndex,
    run: Run,
    model: str,
    session: Session,
    tenant: Tenant,
    maker: sessionmaker[Session],
    storage: Storage,
) -> None:
    index, other = (run(make_index(PAPERS, embedding_model=model)) for _ in range(2))
    assert len(index_objects(storage)) == 2 * 3
    lifecycle.delete_index(session, tenant.id, index.id, by="key_1")
    session.commit()
    with pytest.raises(NotFoundError):
        lifecycle.INDEXES.get(session, tenant.id, index.id)
    with pytest.raises(NotFoundError):
        lifecycle.delete_index(session, tenant.id, index.id, by="key_1")
    assert purge_indexes(maker, storage) == 1
    assert purge_indexes(maker, storage) == 0
    assert num_rows(session) == {"passage_index": 1, "flow_node": 4, "index_segment": 1}
    assert len(index_objects(storage)) == 3
    assert lifecycle.INDEXES.get(session, tenant.id, other.id).state == "completed"
    billed = session.execute(text("SELECT sum(input_tokens) FROM ledger")).scalar_one()
    assert billed == 14
    session.commit()
    assert audit(session) == []


def test_an_index_that_is_deleted_while_it_is_built_ends_with_its_batch(
    make_index: MakeIndex,
    session: Session,
    tenant: Tenant,
    maker: sessionmaker[Session],
    storage: Storage,
    indexes: Indexes,
    answering: IndexAnswering,
) -> None:
    index = make_index(PAPERS)
    indexes.advance(index.id)
    lifecycle.delete_index(session, tenant.id, index.id, by="key_1")
    session.commit()
    assert purge_indexes(maker, storage) == 0
    indexes.advance(index.id)
    answering.work_off()
    indexes.advance(index.id)
    assert purge_indexes(maker, storage) == 1
    assert num_rows(session) == {"passage_index": 0, "flow_node": 0, "index_segment": 0}
    assert index_objects(storage) == []
    session.commit()
    assert audit(session) == []


def test_indexes_go_with_their_tenant(
    make_index: MakeIndex,
    run: Run,
    session: Session,
    tenant: Tenant,
    maker: sessionmaker[Session],
    storage: Storage,
    indexes: Indexes,
    answering: IndexAnswering,
) -> None:
    run(make_index(PAPERS))
    building = make_index(PAPERS)
    indexes.advance(building.id)
    delete_tenant(session, tenant, by="operator")
    session.commit()
    for _ in range(4):
        delete_left(maker)
        indexes.advance(building.id)
        answering.work_off()
        purge_indexes(maker, storage)
    assert num_rows(session) == {"passage_index": 0, "flow_node": 0, "index_segment": 0}
    assert index_objects(storage) == []


def test_objects_that_no_row_names_are_swept_once_they_are_old(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    storage = Storage(tmp_path.as_uri())
    store_owner.adopt(maker, storage)
    old, young, part, strangers = (new_key(tenant.id) for _ in range(4))
    strangers = strangers.replace(tenant.id, "tenant_" + "0" * 32)
    before = time.time() - 2 * 86_400
    for name, is_old in ((old, True), (vectors_key(old), True), (young, False), (f"{part}#1", True), (strangers, True)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        if is_old:
            os.utime(path, (before, before))
    assert sweep_index_objects(maker, storage, age=timedelta(days=1)) == 3
    assert sorted(index_objects(storage)) == sorted([young, strangers])


def test_objects_of_an_index_are_not_swept(
    make_index: MakeIndex, run: Run, model: str, session: Session, maker: sessionmaker[Session], storage: Storage
) -> None:
    run(make_index(PAPERS, embedding_model=model))
    store_owner.adopt(maker, storage)
    create_tenant(session, "other")
    session.commit()
    assert sweep_index_objects(maker, storage, age=timedelta(seconds=-60)) == 0
    assert len(index_objects(storage)) == 3
