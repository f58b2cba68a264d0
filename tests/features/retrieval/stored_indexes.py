"""Completed indexes of a few passages in the service's format, with given vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from sqlalchemy import func
from sqlalchemy.orm import Session

from features.documents.collections import collection
from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.retrieval.archive import PassageText, archive
from features.documents.extraction.retrieval.columns import pack
from features.documents.extraction.retrieval.segment import build
from features.documents.extraction.retrieval.signature import EmbeddingSignature, Signature
from features.retrieval.objects import new_key, vectors_key
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs.ids import new_id
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings

WORDS = Signature(cutter="whole", tokenizer_sha256="t", language="english")
VECTORS = EmbeddingSignature(model_sha256="m", pooling="mean", dimensions=2, query_prefix="query: ")

Texts = Mapping[str, Sequence[str]]
"""The passages of documents, by the documents' names."""


def write_segment(storage: Storage, key: str, texts: Texts, vectors: Sequence[Sequence[float]] | None = None) -> int:
    """Write the objects of a segment whose documents have the ids `document_<name>`; return the number of its rows."""
    documents, shown = [], []
    for name, passages in texts.items():
        starts = np.cumsum([0, *(len(each) + 1 for each in passages)]).tolist()
        places = [
            Passage(start=start, end=start + len(each), num_tokens=len(each.split()), headings=(name,))
            for start, each in zip(starts, passages, strict=False)
        ]
        documents.append((f"document_{name}", " ".join(passages), places))
        shown += [PassageText(headings=(name,), text=each) for each in passages]
    segment = build(documents, WORDS)
    storage.put(key, archive(segment, list(texts), shown))
    if vectors is not None:
        storage.put(vectors_key(key), pack({}, {"vectors": np.array(vectors, np.float16)}))
    return segment.num_rows


def add_index(
    session: Session,
    storage: Storage,
    tenant: Tenant,
    segments: Sequence[Texts],
    *,
    vectors: Sequence[Sequence[Sequence[float]]] | None = None,
    **columns: object,
) -> PassageIndex:
    """Add a completed index, and commit."""
    owner = collection.create_collection(session, tenant.id, "papers", metadata=None, settings=Settings())
    signature = WORDS if vectors is None else replace(WORDS, embedding=VECTORS)
    values: dict[str, object] = {
        "id": new_id("index"),
        "tenant_id": tenant.id,
        "collection_id": owner.id,
        "max_tokens": 16,
        "overlap_tokens": 0,
        "language": "english",
        "embedding_model": None if vectors is None else "minilm",
        "priority": "normal",
        "completion_window": "24h",
        "fingerprint": "f",
        "state": "completed",
        "expires_at": func.now(),
        "ended_at": func.now(),
        "signature": signature.to_json(),
    }
    index = PassageIndex(**values | columns)
    session.add(index)
    session.flush()
    for number, texts in enumerate(segments):
        key = new_key(tenant.id)
        rows = write_segment(storage, key, texts, None if vectors is None else vectors[number])
        named = IndexSegment(
            index_id=index.id, number=number, object_key=key, num_documents=len(texts), num_passages=rows
        )
        session.add(named)
    session.commit()
    session.refresh(index)
    return index
