"""Tests of the model that embeds queries of batches: the index's, as it was when the index was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from features.documents.collections.embedders import Embedder
from features.documents.extraction.retrieval.signature import EmbeddingSignature
from features.retrieval.questions import embedder_of
from features.retrieval.tables import PassageIndex
from jobs import served_models
from jobs.errors import ConflictError, NotFoundError
from jobs.tables import Model, Tenant
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


def test_an_index_names_its_dtype_and_refuses_questions_of_another(
    make_index: Callable[..., PassageIndex], run: Any, model: str, session: Session, tenant: Tenant
) -> None:
    index = run(make_index(PAPERS, embedding_model=model))
    assert index.signature["embedding"]["computed_in"] == "float32"
    served_models.note_embedding(session, model, replace(MADE, dtype="bfloat16"))
    with pytest.raises(ConflictError, match=r"float32.* bfloat16.*--dtype float32") as caught:
        embedder_of(session, tenant.id, index.id)
    assert caught.value.code == "model_changed"
    again = run(make_index(PAPERS, embedding_model=model))
    assert again.signature["embedding"]["computed_in"] == "bfloat16"
    assert embedder_of(session, tenant.id, again.id) is not None


def test_an_embedding_reported_before_there_were_dtypes_is_of_float32(
    make_index: Callable[..., PassageIndex], run: Any, model: str, session: Session, tenant: Tenant
) -> None:
    index = run(make_index(PAPERS, embedding_model=model))
    old = {name: value for name, value in asdict(MADE).items() if name != "dtype"}
    session.execute(update(Model).where(Model.name == model).values(embedding=old))
    signature = index.signature["embedding"]
    stored = {name: value for name, value in signature.items() if name != "computed_in"}
    assert EmbeddingSignature(**stored) == EmbeddingSignature(**signature)
    assert embedder_of(session, tenant.id, index.id) is not None
