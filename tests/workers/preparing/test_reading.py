"""Tests of a batch's documents: read once, each with its result; a broken one fails alone, with its code and page."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from features.documents.extraction.documents.document import Document
from features.pipelines import stores
from jobs.accounts import tenants
from jobs.batches import lifecycle
from jobs.errors import ServiceError
from jobs.lines.document_bodies import READ_ENDPOINT
from jobs.storage import Storage
from lab.extraction.pages import make_pdf
from tests.features.documents.extraction.documents.builders import endless_page, with_password
from tests.features.pipelines.work.run_builders import House
from tests.workers.preparing.builders import LIMITS, Library, Preparer
from workers.drain import Drain
from workers.preparing.readers import ReaderPool

PDF = make_pdf(2, seed=1)


def test_a_document_is_read_into_the_store_of_its_tenant(library: Library, preparer: Preparer) -> None:
    batch_id = library.read({"a.pdf": PDF})
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    assert body["object_key"].startswith(f"prepared/{library.tenant.id}/documents/")
    stored = Document.from_bytes(b"".join(library.storage.iter_chunks(body["object_key"])))
    told = {name: body[name] for name in ("num_pages", "num_characters", "parser", "format")}
    assert told == {
        "num_pages": 2,
        "num_characters": len(stored.text),
        "parser": stored.parser,
        "format": "pdf",
    }


def test_a_document_that_was_read_before_is_not_parsed_again(
    library: Library, preparer: Preparer, started_pool: tuple[ReaderPool, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library.read({"a.txt": b"once"})
    assert preparer.run_next()
    monkeypatch.setattr(
        "features.documents.extraction.documents.process.document_reader.DocumentReader.read_stored",
        lambda *_: pytest.fail("parsed again"),
    )
    second = library.read({"b.txt": b"once"})
    assert preparer.run_next()
    assert library.bodies(first) == library.bodies(second)


def test_the_same_bytes_under_another_ending_are_another_document(library: Library, preparer: Preparer) -> None:
    batch_id = library.read({"a.txt": b"# Title", "a.md": b"# Title"})
    assert preparer.run_next()
    assert [body["format"] for body in library.bodies(batch_id)] == ["txt", "md"]


def test_all_that_a_prepare_worker_writes_lies_below_one_prefix(library: Library, preparer: Preparer) -> None:
    library.read({"a.txt": b"text", "b.pdf": make_pdf(2, seed=3)})
    before = {found.name for found in library.storage.iter_objects()}
    assert preparer.run_next()
    written = {found.name for found in library.storage.iter_objects()} - before
    assert len(written) == 2
    assert all(name.startswith("prepared/") for name in written)


def test_tenants_share_no_read_document(library: Library, preparer: Preparer) -> None:
    with library.sessions.begin() as session:
        other = tenants.create_tenant(session, "other")
    theirs = Library(sessions=library.sessions, storage=library.storage, settings=library.settings, tenant=other)
    keys = []
    for each in (library, theirs):
        batch_id = each.read({"a.txt": b"the same"})
        assert preparer.run_next()
        keys.append(each.bodies(batch_id)[0]["object_key"])
    assert [key.split("/")[1] for key in keys] == [library.tenant.id, other.id]


def test_broken_documents_fail_alone_with_code_and_page(library: Library, preparer: Preparer) -> None:
    batch_id = library.read(
        {
            "good.pdf": PDF,
            "empty.txt": b"",
            "locked.pdf": with_password([], b"secret"),
            "endless.pdf": endless_page(1),
            "also good.txt": b"text",
        }
    )
    while library.rows("SELECT FROM chunk WHERE state = 'ready'"):
        assert preparer.run_next()
    errors = library.errors(batch_id)
    code, page = errors.pop("d3")
    assert (code in {"time_limit", "memory_limit"}, page) == (True, 1), "whichever it comes to first"
    assert errors == {"d1": ("empty", None), "d2": ("encrypted", None)}
    assert library.rows("SELECT num_completed, num_failed, cost_picos FROM batch") == [(2, 3, 0)]


def test_what_is_not_there_or_another_tenants_is_an_error_of_its_line(library: Library, preparer: Preparer) -> None:
    with library.sessions.begin() as session:
        other = tenants.create_tenant(session, "other")
    theirs = Library(sessions=library.sessions, storage=library.storage, settings=library.settings, tenant=other)
    lost = library.add("lost.txt", b"lost")
    (key,) = library.rows(f"SELECT object_key FROM file WHERE id = '{lost}'")[0]
    library.storage.delete(key)
    named = [{"file_id": theirs.add("a.txt", b"theirs")}, {"file_id": "file_none"}, {"file_id": lost}]
    batch_id = library.submit(READ_ENDPOINT, [body | {"name": "a.txt"} for body in named])
    assert preparer.run_next()
    assert library.errors(batch_id) == {
        "d0": ("not_found", None),
        "d1": ("not_found", None),
        "d2": ("file_lost", None),
    }


def test_a_document_of_a_store_is_read_and_a_missing_one_fails_alone(
    library: Library, preparer: Preparer, house: House
) -> None:
    (house.documents / "a.txt").write_bytes(b"of a store")
    bodies = [
        {"store": "documents", "key": "a.txt", "name": "a.txt"},
        {"store": "documents", "key": "none.txt", "name": "none.txt"},
        {"store": "strange", "key": "a.txt", "name": "a.txt"},
    ]
    batch_id = library.submit(READ_ENDPOINT, bodies)
    assert preparer.run_next()
    assert library.bodies(batch_id)[0]["num_characters"] == len("of a store")
    assert library.errors(batch_id) == {"d1": ("store_missing", None), "d2": ("not_found", None)}


def test_a_file_beyond_what_is_read_is_not_fetched(
    library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = library.read({"a.txt": b"text"})
    with library.sessions.begin() as session:
        session.execute(text(f"UPDATE file SET size_bytes = {LIMITS.max_bytes + 1} WHERE purpose = 'user_data'"))
    monkeypatch.setattr(Storage, "iter_range", lambda *_, **__: pytest.fail("fetched"))
    assert preparer.run_next()
    assert library.errors(batch_id) == {"d0": ("too_large", None)}


def test_a_store_that_is_away_costs_no_document_its_result(
    library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = library.read({"a.txt": b"text"})

    def away(*_: Any, **__: Any) -> None:
        raise ServiceError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "iter_range", away)
        patched.setattr("workers.chunks.ends.RETRY_SECONDS", 0.0)
        assert not preparer.run_next()
    assert library.rows("SELECT state, losses FROM chunk") == [("ready", 0)]
    assert preparer.run_next()
    assert library.errors(batch_id) == {}


def test_a_cancelled_batch_gives_up_what_is_not_read(library: Library, preparer: Preparer) -> None:
    batch_id = library.read({f"{number}.txt": b"%d" % number for number in range(4)})
    original = preparer.parts.pool.submit

    def cancel_first(work: Any, *, tenant_id: str) -> None:
        with library.sessions.begin() as session:
            lifecycle.cancel_batch(session, library.tenant.id, batch_id)
        original(work, tenant_id=tenant_id)

    preparer.parts.pool.submit = cancel_first  # type: ignore[method-assign]
    try:
        assert not preparer.run_next()
    finally:
        preparer.parts.pool.submit = original  # type: ignore[method-assign]
    assert library.rows("SELECT state FROM chunk") == [("withdrawn",)]


def test_a_draining_worker_gives_the_rest_back(library: Library, started_pool: tuple[ReaderPool, str]) -> None:
    drain = Drain()
    drain.begin(0)
    pool, parsers = started_pool
    library.read({"endless.pdf": endless_page(0)})
    assert not Preparer.of(library, pool, parsers=parsers, drain=drain).run_next()
    assert library.rows("SELECT state, losses FROM chunk") == [("ready", 0)]


def test_a_registered_store_is_one_tenants_alone(library: Library, preparer: Preparer, house: House) -> None:
    (house.documents / "a.txt").write_bytes(b"mine")
    with library.sessions.begin() as session:
        other = tenants.create_tenant(session, "other")
        assert stores.list_stores(session, other.id) == []
    theirs = Library(sessions=library.sessions, storage=library.storage, settings=library.settings, tenant=other)
    batch_id = theirs.submit(READ_ENDPOINT, [{"store": "documents", "key": "a.txt", "name": "a.txt"}])
    assert preparer.run_next()
    assert theirs.errors(batch_id) == {"d0": ("not_found", None)}
