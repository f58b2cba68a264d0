"""Accepts indexes: what may be asked for is checked, and what they will be made with is noted. Builds nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from extraction.errors import PassageError, RetrievalError
from extraction.passages.cutting import LEAST_TOKENS, Cutter
from extraction.retrieval.signature import EmbeddingSignature
from extraction.retrieval.terms import SIMPLE, Analyzer
from jobs import served_models
from jobs.accounts.limits import check_priority
from jobs.batches.submission import check_metadata, parse_window
from jobs.database import advisory_lock
from jobs.errors import ConflictError, InputError, LimitError
from jobs.extractions import documents
from jobs.extractions.collection import lock_collection
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.states import AskedPriority
from jobs.tables import PassageIndex, Tenant

MAX_PASSAGE_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """A create call."""

    collection_id: str
    name: str | None = None
    embedding_model: str | None = None
    """None: passages are found by their words alone."""
    max_tokens: int = 256
    """Of a passage."""
    overlap_tokens: int = 32
    language: str = SIMPLE
    query_prefix: str = ""
    """What the model wants before a question, and before a passage."""
    document_prefix: str = ""
    priority: AskedPriority = AskedPriority.NORMAL
    completion_window: str = "24h"
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None

    def fingerprint(self) -> str:
        """Return a hash of what is asked for, equal for a repeated call."""
        wanted = {name: value for name, value in asdict(self).items() if name != "idempotency_key"}
        return hashlib.sha256(orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)).hexdigest()


def create_index(
    session: Session, tenant: Tenant, wanted: CreateIndex, settings: Settings, *, key_id: str
) -> PassageIndex:
    """Accept an index, or return the one that an earlier call with the same idempotency key made.

    Raises InputError, ForbiddenError, NotFoundError, LimitError, or ConflictError where the key was used for another
    request, or nobody knows yet how the model makes its vectors.
    """
    earlier = _find_earlier(session, tenant.id, wanted)
    if earlier is not None:
        return earlier
    check_metadata(wanted.metadata)
    check_priority(tenant, wanted.priority)
    check_cutting(wanted)
    window = parse_window(wanted.completion_window)
    collection = lock_collection(session, tenant.id, wanted.collection_id)
    num_documents = documents.num_documents(session, [collection.id])[collection.id]
    if not num_documents:
        raise InputError(
            f"Collection {collection.id!r} has no documents; add some first.",
            param="collection_id",
            code="empty_collection",
        )
    embedding = _embedding(session, wanted)
    _check_room(session, tenant.id, settings)
    index = PassageIndex(
        id=new_id("index"),
        tenant_id=tenant.id,
        collection_id=collection.id,
        name=wanted.name,
        max_tokens=wanted.max_tokens,
        overlap_tokens=wanted.overlap_tokens,
        language=wanted.language,
        embedding_model=wanted.embedding_model,
        embedding=None if embedding is None else asdict(embedding),
        priority=wanted.priority.value,
        completion_window=wanted.completion_window,
        request_metadata=None if wanted.metadata is None else dict(wanted.metadata),
        api_key_id=key_id,
        idempotency_key=wanted.idempotency_key,
        fingerprint=wanted.fingerprint(),
        expires_at=func.now() + window,
        num_documents=num_documents,
    )
    session.add(index)
    session.flush()
    session.refresh(index)
    return index


def check_cutting(wanted: CreateIndex) -> None:
    """Raise InputError for passages that cannot be cut so, or a language that is not known."""
    if wanted.max_tokens > MAX_PASSAGE_TOKENS:
        raise InputError(
            f"max_tokens is {wanted.max_tokens:,}; a passage may have {MAX_PASSAGE_TOKENS:,}.",
            param="max_tokens",
            code="invalid_value",
        )
    try:
        Cutter(count=len, max_tokens=wanted.max_tokens, overlap_tokens=wanted.overlap_tokens)
    except PassageError as error:
        param = "max_tokens" if wanted.max_tokens < LEAST_TOKENS else "overlap_tokens"
        raise InputError(_sentence(error), param=param, code="invalid_value") from None
    try:
        Analyzer(wanted.language)
    except RetrievalError as error:
        raise InputError(_sentence(error), param="language", code="invalid_value") from None


def _sentence(error: Exception) -> str:
    said = str(error)
    return said[:1].upper() + said[1:]


def _embedding(session: Session, wanted: CreateIndex) -> EmbeddingSignature | None:
    """Return how the vectors of an index will be made; None where it has none."""
    if wanted.embedding_model is None:
        if wanted.query_prefix or wanted.document_prefix:
            message = "Prefixes are for a model that embeds; give embedding_model, or leave them out."
            raise InputError(message, param="embedding_model", code="missing_required_parameter")
        return None
    model = served_models.find_offered(session, wanted.embedding_model)
    if model.serves != LineKind.POOL:
        raise InputError(
            f"The model {model.name!r} does not embed texts; choose one whose `endpoints` in GET /v1/models has "
            "/v1/embeddings.",
            param="embedding_model",
            code="model_not_supported",
        )
    made = served_models.embedding_of(model)
    if wanted.max_tokens > made.max_tokens:
        raise InputError(
            f"max_tokens is {wanted.max_tokens:,} and the model {model.name!r} reads {made.max_tokens:,} tokens at "
            "once; give at most as many.",
            param="max_tokens",
            code="invalid_value",
        )
    return EmbeddingSignature(
        model_sha256=made.model_sha256,
        pooling=made.pooling,
        dimensions=made.dimensions,
        query_prefix=wanted.query_prefix,
        document_prefix=wanted.document_prefix,
    )


def _find_earlier(session: Session, tenant_id: str, wanted: CreateIndex) -> PassageIndex | None:
    if wanted.idempotency_key is None:
        return None
    advisory_lock(session, f"index {tenant_id} {wanted.idempotency_key}")
    is_it = (PassageIndex.tenant_id == tenant_id) & (PassageIndex.idempotency_key == wanted.idempotency_key)
    found = session.scalar(select(PassageIndex).where(is_it))
    if found is not None and found.fingerprint != wanted.fingerprint():
        raise ConflictError(
            f"The Idempotency-Key {wanted.idempotency_key!r} was used for another request, which made index "
            f"{found.id!r}. Repeat that request unchanged, or use a new key.",
            code="idempotency_key_reused",
        )
    return found


def _check_room(session: Session, tenant_id: str, settings: Settings) -> None:
    advisory_lock(session, f"indexes {tenant_id}")
    mine = select(func.count()).where(PassageIndex.tenant_id == tenant_id, PassageIndex.deleted_at.is_(None))
    if (session.scalar(mine) or 0) >= settings.tenant_indexes:
        raise LimitError(
            f"You have {settings.tenant_indexes:,} indexes, which is as many as you may. Delete one.",
            code="too_many_indexes",
        )
