"""Creates index rows: checks the request and stores the settings to build with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.documents.collections.collection import lock_filled
from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.signature import EmbeddingSignature
from features.documents.extraction.retrieval.terms import SIMPLE, Analyzer
from features.retrieval.passage_limits import (
    DEFAULT_OVERLAP,
    DEFAULT_PASSAGE_TOKENS,
    CountedBy,
    PassageLimits,
    counted_by,
    passage_limits,
    room_in,
)
from features.retrieval.settings import RetrievalSettings
from features.retrieval.states import IndexState
from features.retrieval.tables import PassageIndex
from flows.repeated_calls import find_earlier
from jobs import served_models
from jobs.accounts.limits import check_priority
from jobs.batches.submission import check_metadata
from jobs.call_limits import parse_window
from jobs.database import advisory_lock
from jobs.errors import InputError, LimitError
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind
from jobs.states import AskedPriority
from jobs.tables import Model, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """A create call."""

    collection_id: str
    name: str | None = None
    embedding_model: str | None = None
    """None: passages are found by their words only."""
    tokenizer: str | None = None
    """The model whose tokens are counted; None: the embedding model or, without one, two bytes are a token."""
    max_tokens: int | None = None
    """Of a passage; None: 256, or the embedding model's limit if lower."""
    overlap_tokens: int | None = None
    """None: 32, or a quarter of a passage."""
    language: str = SIMPLE
    query_prefix: str = ""
    """Prefixes that the model expects before questions and passages."""
    document_prefix: str = ""
    priority: AskedPriority = AskedPriority.NORMAL
    completion_window: str = "24h"
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None

    def fingerprint(self) -> str:
        """Return a hash of the request, equal for a repeated call."""
        request = {name: value for name, value in asdict(self).items() if name != "idempotency_key"}
        if self.tokenizer is None:  # left out of the hash if not given; others count as their defaults
            del request["tokenizer"]
        for name, default in (("max_tokens", DEFAULT_PASSAGE_TOKENS), ("overlap_tokens", DEFAULT_OVERLAP)):
            request[name] = default if request[name] is None else request[name]
        return hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS)).hexdigest()


def create_index(
    session: Session, tenant: Tenant, request: CreateIndex, settings: RetrievalSettings, *, key_id: str
) -> PassageIndex:
    """Accept an index, or return the one that an earlier call with the same idempotency key made.

    Raises InputError, ForbiddenError, NotFoundError, LimitError, or ConflictError if the key was used for another
    request, or it is not known yet how the model makes its vectors.
    """
    earlier = find_earlier(session, PassageIndex, tenant.id, request, name="index")
    if earlier is not None:
        return earlier
    check_metadata(request.metadata)
    check_priority(tenant, request.priority)
    _check_language(request.language)
    passage_limits(request.max_tokens, request.overlap_tokens)
    window = parse_window(request.completion_window)
    collection, num_documents = lock_filled(session, tenant.id, request.collection_id)
    model = _embedding_model(session, request)
    counted = counted_by(session, request.tokenizer, model)
    limits = _limits(request, model, counted)
    _check_room(session, tenant.id, settings)
    index = PassageIndex(
        id=new_id("index"),
        tenant_id=tenant.id,
        state=IndexState.IN_PROGRESS.value,
        collection_id=collection.id,
        name=request.name,
        max_tokens=limits.max_tokens,
        overlap_tokens=limits.overlap_tokens,
        tokenizer_model=None if counted is None else counted.model,
        tokenizer_sha256=None if counted is None else counted.tokenizer.sha256,
        language=request.language,
        embedding_model=request.embedding_model,
        embedding=None if model is None else asdict(_signature(model, request)),
        priority=request.priority.value,
        completion_window=request.completion_window,
        request_metadata=None if request.metadata is None else dict(request.metadata),
        api_key_id=key_id,
        idempotency_key=request.idempotency_key,
        fingerprint=request.fingerprint(),
        expires_at=func.now() + window,
        num_documents=num_documents,
    )
    session.add(index)
    session.flush()
    session.refresh(index)
    return index


def _check_language(language: str) -> None:
    try:
        Analyzer(language)
    except RetrievalError as error:
        message = str(error)
        raise InputError(message[:1].upper() + message[1:], param="language", code="invalid_value") from None


def _embedding_model(session: Session, request: CreateIndex) -> Model | None:
    """Return the embedding model of an index, or None if it has none."""
    if request.embedding_model is None:
        if request.query_prefix or request.document_prefix:
            message = "Prefixes are for a model that embeds; give embedding_model, or leave them out."
            raise InputError(message, param="embedding_model", code="missing_required_parameter")
        return None
    model = served_models.find_offered(session, request.embedding_model)
    if model.serves != LineKind.POOL:
        raise InputError(
            f"The model {model.name!r} does not embed texts; choose one whose `endpoints` in GET /v1/models has "
            "/v1/embeddings.",
            param="embedding_model",
            code="model_not_supported",
        )
    return model


def _limits(request: CreateIndex, model: Model | None, counted: CountedBy | None) -> PassageLimits:
    if model is None:
        return passage_limits(request.max_tokens, request.overlap_tokens)
    room = room_in(model, counted, prefix=request.document_prefix)
    return passage_limits(request.max_tokens, request.overlap_tokens, room=room, model=model.name)


def _signature(model: Model, request: CreateIndex) -> EmbeddingSignature:
    """Return the signature of the vectors that a model will make."""
    signature = served_models.embedding_of(model)
    return EmbeddingSignature(
        model_sha256=signature.model_sha256,
        pooling=signature.pooling,
        dimensions=signature.dimensions,
        computed_in=signature.dtype,
        query_prefix=request.query_prefix,
        document_prefix=request.document_prefix,
    )


def _check_room(session: Session, tenant_id: str, settings: RetrievalSettings) -> None:
    advisory_lock(session, f"indexes {tenant_id}")
    mine = (
        select(func.count())
        .select_from(PassageIndex)
        .where(PassageIndex.tenant_id == tenant_id, PassageIndex.deleted_at.is_(None))
    )
    if (session.scalar(mine) or 0) >= settings.tenant_indexes:
        raise LimitError(
            f"You have {settings.tenant_indexes:,} indexes, which is the maximum. Delete one.",
            code="too_many_indexes",
        )
