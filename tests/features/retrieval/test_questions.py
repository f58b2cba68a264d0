"""Tests of the model that embeds queries of batches: the index's, as it was when the index was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.documents.collections.embedders import Embedder
from features.retrieval.questions import embedder_of
from features.retrieval.tables import PassageIndex
from jobs import served_models
from jobs.errors import ConflictError, NotFoundError
from jobs.tables import Tenant
from tests.features.retrieval.answering import MADE

PAPERS = {"a.txt": "Ferries leave at nine."}


def test_an_index_of_words_needs_no_vectors(
    make_index: Callable[..., PassageIndex], run: Any, session: Session, tenant: Tenant
) -> None:
    assert embedder_of(session, tenant.id, run(make_index(PAPERS)).id) is None


def test_queries_are_embedded_as_the_passages_were(
    make_index: Callable[..., PassageIndex], run: Any, model: str, session: Session, tenant: Tenant
) -> None:
    index = run(make_index(PAPERS, embedding_model=model, query_prefix="query: "))
    assert embedder_of(session, tenant.id, index.id) == Embedder(
        model=model, query_prefix="query: ", max_tokens=MADE.max_tokens
    )
    with pytest.raises(NotFoundError):
        embedder_of(session, "tenant_other", index.id)
    served_models.note_embedding(session, model, replace(MADE, model_sha256="m2"))
    with pytest.raises(ConflictError) as caught:
        embedder_of(session, tenant.id, index.id)
    assert caught.value.code == "model_changed"
