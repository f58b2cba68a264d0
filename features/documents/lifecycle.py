"""Lifecycle of an extraction: create, get, list, cancel, end; the only writer of its state."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from features.documents.asking import require_askable
from features.documents.collections.collection import lock_filled
from features.documents.collections.corpora import FindIndex
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.extraction.errors import ExtractionError
from features.documents.settings import DocumentSettings
from features.documents.states import TERMINAL_EXTRACTION_STATES, ExtractionState
from features.documents.tables import Extraction
from features.pipelines.steps import require_model
from flows import repeated_calls
from flows.kinds import Kind
from jobs.accounts.limits import check_priority
from jobs.batches.submission import check_metadata
from jobs.call_limits import parse_window
from jobs.chunks import fleet
from jobs.database import advisory_lock
from jobs.errors import InputError, LimitError
from jobs.ids import new_id
from jobs.lines.body_context import DEFAULT_TOP_K
from jobs.pagination import Page
from jobs.states import AskedPriority
from jobs.tables import Tenant

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateExtraction:
    """A create call; the plan has been checked."""

    plan: StoredPlan
    collection_id: str | None = None
    """All documents of a collection are asked, or instead an index as if it were one document."""
    index_id: str | None = None
    top_k: int | None = None
    """Maximum number of passages shown to a question of an index."""
    parquet: bool = False
    priority: AskedPriority = AskedPriority.NORMAL
    completion_window: str = "24h"
    output_expires_after_seconds: int | None = None
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None

    def fingerprint(self) -> str:
        """Return a hash of the request, equal for a repeated call."""
        request = asdict(self) | {"plan": self.plan.to_json(), "again": self.plan.passes.again}
        del request["idempotency_key"]
        request["plan"].pop("corpus", None)  # decided by the index
        if self.index_id is None:
            del request["index_id"], request["top_k"]  # without an index, as in stored fingerprints
        return hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS)).hexdigest()


def create_extraction(
    session: Session,
    tenant: Tenant,
    request: CreateExtraction,
    settings: DocumentSettings,
    *,
    key_id: str,
    find_index: FindIndex,
) -> Extraction:
    """Accept an extraction, or return the one that an earlier call with the same idempotency key made.

    Raises InputError, ForbiddenError, NotFoundError, LimitError, or ConflictError if the key was used for another
    request.
    """
    earlier = find_earlier(session, tenant.id, request)
    if earlier is not None:
        return earlier
    check_metadata(request.metadata)
    check_priority(tenant, request.priority)
    window = parse_window(request.completion_window)
    target = _asked(session, tenant.id, request, find_index)
    require_model(session, request.plan.model)
    _check_room(session, tenant.id, settings)
    plan = replace(request.plan, corpus=target.corpus, context=fleet.contexts(session).get(request.plan.model))
    require_askable(session, plan, num_documents=target.num_documents, settings=settings)
    extraction = Extraction(
        id=new_id("extraction"),
        tenant_id=tenant.id,
        state=ExtractionState.IN_PROGRESS.value,
        collection_id=target.collection_id,
        model=request.plan.model,
        plan=orjson.loads(plan.to_bytes()),
        again=plan.passes.again,
        parquet=request.parquet,
        priority=request.priority.value,
        completion_window=request.completion_window,
        output_expires_after_seconds=request.output_expires_after_seconds,
        request_metadata=None if request.metadata is None else dict(request.metadata),
        api_key_id=key_id,
        idempotency_key=request.idempotency_key,
        fingerprint=request.fingerprint(),
        expires_at=func.now() + window,
        num_documents=target.num_documents,
    )
    session.add(extraction)
    session.flush()
    session.refresh(extraction)
    return extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    collection_id: str
    num_documents: int
    corpus: Corpus | None = None


def _asked(session: Session, tenant_id: str, request: CreateExtraction, find_index: FindIndex) -> _Asked:
    """Return what to ask; an index counts as one document. Raises InputError, NotFoundError, ConflictError."""
    if request.index_id is not None:
        index = find_index(session, tenant_id, request.index_id)
        corpus = index.corpus(top_k=DEFAULT_TOP_K if request.top_k is None else request.top_k)
        return _Asked(collection_id=index.collection_id, num_documents=1, corpus=corpus)
    assert request.collection_id is not None, "one of the two is given"
    collection, num_documents = lock_filled(session, tenant_id, request.collection_id)
    return _Asked(collection_id=collection.id, num_documents=num_documents)


def find_earlier(session: Session, tenant_id: str, request: CreateExtraction) -> Extraction | None:
    """Return the extraction made by an earlier call with this idempotency key. Raises ConflictError if calls differ."""
    return repeated_calls.find_earlier(session, Extraction, tenant_id, request, name="extraction")


def _check_room(session: Session, tenant_id: str, settings: DocumentSettings) -> None:
    advisory_lock(session, f"extractions {tenant_id}")
    mine = (
        select(func.count())
        .select_from(Extraction)
        .where(Extraction.tenant_id == tenant_id, Extraction.ended_at.is_(None))
    )
    if (session.scalar(mine) or 0) >= settings.tenant_open_extractions:
        raise LimitError(
            f"You have {settings.tenant_open_extractions:,} extractions under way, which is as many as you may. Wait "
            "for one to end, or cancel one.",
            code="too_many_extractions",
        )


EXTRACTIONS = Kind(Extraction, "extraction", ends=TERMINAL_EXTRACTION_STATES)


def list_extractions(
    session: Session, tenant_id: str, *, collection_id: str | None, after: str | None, limit: int
) -> Page[Extraction]:
    """Return a page of a tenant's extractions, newest first. Raises InputError on an unknown `after`."""
    of_it = true() if collection_id is None else Extraction.collection_id == collection_id
    return EXTRACTIONS.page(session, tenant_id, of_it, after=after, limit=limit)


def cancel_extraction(session: Session, tenant_id: str, extraction_id: str, *, reason: str) -> Extraction:
    """Request cancellation of an extraction; work already done by its batches is billed. Idempotent.

    Raises NotFoundError, or ConflictError if it has ended.
    """
    extraction, is_open = EXTRACTIONS.lock_to_cancel(session, tenant_id, extraction_id)
    if is_open:
        stop(session, extraction, reason=reason)
    return extraction


def stop(session: Session, extraction: Extraction, *, reason: str) -> None:
    """Cancel a locked extraction that is in progress."""
    extraction.reason = reason
    EXTRACTIONS.move(session, extraction, ExtractionState.CANCELLING)


def stored_plan(extraction: Extraction) -> StoredPlan:
    """Return the plan of an extraction. Raises InputError if another release stored it."""
    return _plan_of(orjson.dumps(extraction.plan), again=extraction.again)


def job_of(extraction: Extraction) -> ExtractJob:
    """Return the job that an extraction's plan makes. Raises as `stored_plan`."""
    return _job_of(orjson.dumps(extraction.plan), again=extraction.again)


@lru_cache(maxsize=32)  # workers look at each extraction hundreds of times
def _job_of(stored: bytes, *, again: bool) -> ExtractJob:
    return _plan_of(stored, again=again).job()


def _plan_of(stored: bytes, *, again: bool) -> StoredPlan:
    try:
        plan = StoredPlan.from_bytes(stored)
    except ExtractionError as error:
        raise InputError(str(error)) from None
    return replace(plan, passes=replace(plan.passes, again=again))


def counts_of(extraction: Extraction) -> dict[str, Any]:
    """Return the numbers of an extraction's documents by outcome, once it is completed."""
    num_failed = sum(extraction.failed_codes.values())
    return {"total": extraction.num_documents, "completed": extraction.num_done, "failed": num_failed}
