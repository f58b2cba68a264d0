"""Tests of cutting read documents into the segment of an index by a confined process; failures are reported."""

from __future__ import annotations

from typing import Any

import pytest

from features.documents.extraction.documents.document import Document
from features.documents.extraction.errors import DocumentCode, DocumentError
from features.documents.extraction.passages.cutting import Cutter
from features.documents.extraction.passages.token_count import TokenCount
from features.retrieval.objects import new_key, read_segment
from jobs.lines.document_bodies import CUT_ENDPOINT
from jobs.storage import tokenizers
from tests.features.documents.extraction.passages.builders import byte_tokenizer
from tests.workers.preparing.builders import Library, Preparer
from workers.preparing.readers import Readers

LIMITS = {"max_tokens": 64, "overlap_tokens": 0, "language": "english"}


@pytest.fixture
def documents(library: Library, preparer: Preparer) -> list[dict[str, Any]]:
    """The bodies of lines for read documents."""
    texts = {"a.md": b"# Boats\n\nThey float.", "b.txt": b"Oaks grow."}
    batch_id = library.read(texts)
    assert preparer.run_next()
    return [
        {"id": f"document_{name}", "name": name, "object_key": body["object_key"]}
        for name, body in zip(texts, library.bodies(batch_id), strict=True)
    ]


def cut(library: Library, preparer: Preparer, documents: list[dict[str, Any]], key: str, **fields: Any) -> str:
    batch_id = library.submit(CUT_ENDPOINT, [{"segment_key": key, "documents": documents, **LIMITS, **fields}])
    assert preparer.run_next()
    return batch_id


def test_documents_become_a_segment_that_says_how_it_was_made(
    library: Library, preparer: Preparer, documents: list[dict[str, Any]]
) -> None:
    key = new_key(library.tenant.id)
    (body,) = library.bodies(cut(library, preparer, documents, key))
    assert (body["num_documents"], body["num_passages"], body["failed"]) == (2, 2, [])
    assert body["size_bytes"] == library.storage.size(key)
    found = read_segment(library.storage, key)
    assert found.names == ("a.md", "b.txt")
    assert found.segment.documents == ("document_a.md", "document_b.txt")
    assert found.segment.signature.to_json() == body["signature"]
    assert body["signature"]["cutter"].endswith("64-0-with-headings")


def test_passages_are_those_that_a_cutter_with_the_same_tokenizer_finds_anywhere(
    library: Library, preparer: Preparer
) -> None:
    text = "# The harbour\n\n" + " ".join(f"Boat {number} leaves at {number % 24} o'clock." for number in range(99))
    batch_id = library.read({"boats.md": text.encode(), "more.md": text.encode()[:900]})
    assert preparer.run_next()
    read = [
        {"id": f"document_{number}", "name": "boats.md", "object_key": body["object_key"]}
        for number, body in enumerate(library.bodies(batch_id))
    ]
    sha256, key = tokenizers.keep(library.storage, byte_tokenizer()), new_key(library.tenant.id)
    (body,) = library.bodies(cut(library, preparer, read, key, tokenizer_sha256=sha256, overlap_tokens=8))
    assert body["signature"]["tokenizer_sha256"] == sha256

    cutter = Cutter(count=TokenCount(byte_tokenizer()), max_tokens=64, overlap_tokens=8)
    assert body["signature"]["cutter"].startswith(f"{cutter.version} tokenizers-")
    here = []
    for each in read:
        document = Document.from_bytes(b"".join(library.storage.iter_chunks(each["object_key"])))
        found = cutter.cut(document.text, document.headings)
        here += [(each["id"], one.start, one.end, one.num_tokens) for one in found]
    places = [read_segment(library.storage, key).segment.place(row) for row in range(body["num_passages"])]
    assert [(one.document, one.start, one.end, one.num_tokens) for one in places] == here
    assert 55 < max(one.num_tokens for one in places) <= 64


def test_a_tokenizer_that_is_gone_or_of_a_later_release_fails_the_line(
    library: Library, preparer: Preparer, documents: list[dict[str, Any]]
) -> None:
    key = new_key(library.tenant.id)
    batch_id = cut(library, preparer, documents, key, tokenizer_sha256="0" * 64)
    assert library.errors(batch_id) == {"d0": ("tokenizer_gone", None)}
    sha256 = tokenizers.keep(library.storage, b'{"version": "9.0"}')
    batch_id = cut(library, preparer, documents, key, tokenizer_sha256=sha256)
    assert library.errors(batch_id) == {"d0": ("tokenizer_unreadable", None)}


def test_what_is_gone_or_ends_its_process_is_left_out_and_told(
    library: Library, preparer: Preparer, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"id": "document_c", "name": "c.txt", "object_key": f"{library.tenant.id}/documents/none.doc"}
    damaged = {"id": "document_d", "name": "d.txt", "object_key": f"{library.tenant.id}/damaged"}
    library.storage.put(damaged["object_key"], b"no document")
    key = new_key(library.tenant.id)
    (body,) = library.bodies(cut(library, preparer, [gone, *documents, damaged], key))
    assert (body["num_documents"], body["num_passages"]) == (2, 2)
    assert {failed["id"]: failed["code"] for failed in body["failed"]} == {
        "document_c": "document_gone",
        "document_d": "damaged",
    }


def test_documents_that_cannot_be_cut_together_fail_their_line(
    library: Library, preparer: Preparer, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_stored(_: object, content: bytes, name: str, **_others: object) -> bytes:
        if name == "documents of an index":
            raise DocumentError(DocumentCode.MEMORY_LIMIT, "too much")
        return content

    monkeypatch.setattr(type(Readers().passages), "read_stored", read_stored)
    batch_id = cut(library, preparer, documents, new_key(library.tenant.id))
    assert library.errors(batch_id) == {"d0": ("memory_limit", None)}


def test_objects_of_another_tenant_are_refused(
    library: Library, preparer: Preparer, documents: list[dict[str, Any]]
) -> None:
    stranger = "tenant_" + "0" * 32
    batch_id = cut(library, preparer, documents, new_key(stranger))
    assert library.errors(batch_id) == {"d0": ("not_found", None)}
    theirs = [{**documents[0], "object_key": f"{stranger}/documents/x.doc"}]
    batch_id = cut(library, preparer, theirs, new_key(library.tenant.id))
    assert library.errors(batch_id) == {"d0": ("not_found", None)}
