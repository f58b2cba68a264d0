"""`/v1/indexes`: bodies of indexes and search results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Literal, Self

from api.schemas.stages import CourseStage
from api.schemas.wire import (
    DeletedObject,
    ListedObject,
    Page,
    WireModel,
    unix_seconds,
    unix_seconds_or_none,
    unix_seconds_up,
)
from features.documents.extraction.retrieval.choosing import LeftOut
from features.documents.schemas.extractions import DocumentCounts
from features.retrieval.lifecycle import counts_of
from features.retrieval.searching import DroppedPassage, Found, FoundPassage
from features.retrieval.stages import STAGES, IndexStage
from features.retrieval.states import IndexState
from features.retrieval.tables import IndexNode, PassageIndex
from flows.ends import FlowEnd
from jobs.accounts import prices
from jobs.accounts.money import in_currency
from jobs.states import Priority
from jobs.tables import Batch


class SearchMode(StrEnum):
    """How passages are found."""

    HYBRID = "hybrid"  # by words and by the question's vector, with fused rankings
    BM25 = "bm25"  # by words only


class PassageOrder(StrEnum):
    """Order of passages in the result."""

    DOCUMENT = "document"  # documents by their best passage, the passages of each in text order
    SCORE = "score"  # best first


class IndexStageObject(CourseStage[IndexStage]):
    pass


class IndexFailure(WireModel):
    """A document that is not in the index."""

    document_id: str
    document: str
    """Its name."""
    code: str
    message: str


class IndexObject(ListedObject):
    object: Literal["index"] = "index"
    name: str | None
    collection_id: str
    embedding_model: str | None
    """Null: passages are found by their words only."""
    tokenizer: str | None
    """The model whose tokenizer counts passages exactly; null: two bytes are a token."""
    max_tokens: int
    """Of a passage, including its headings."""
    overlap_tokens: int
    language: str
    query_prefix: str
    document_prefix: str
    status: IndexState
    reason: str | None
    """Why it ended without completing, or what it waits for."""
    stages: list[IndexStageObject]
    """Those that have begun."""
    document_counts: DocumentCounts
    failed_codes: dict[str, int]
    """Numbers of documents that are not in it, by code."""
    failures: list[IndexFailure]
    """The first 100 of these documents."""
    num_passages: int
    num_without_vector: int
    """Number of passages that the model did not embed: they are found by their words only."""
    bytes: int
    """Size of all its objects; counts towards the tenant's storage limit."""
    signature: dict[str, Any] | None
    """How it was made; null until documents are cut."""
    input_tokens: int
    """For all its batches."""
    cost: str
    """For all its batches, in units of the currency."""
    currency: str
    priority: Priority
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    """When its batches expire; the index itself stays until it is deleted."""
    ended_at: int | None
    eta: int | None
    """When it is expected to end, by its own pace so far; null while unknown, and after its end."""
    eta_earliest: int | None
    """With `eta_latest` the range of the end by its pace; null if `eta` is. How often it held: docs/flows.md."""
    eta_latest: int | None

    @classmethod
    def of(
        cls,
        index: PassageIndex,
        stages: Sequence[IndexNode],
        batches: Mapping[str, Batch],
        *,
        end: FlowEnd,
        currency: str,
    ) -> Self:
        of_stages = [batches.get(stage.batch_id or "") for stage in stages]
        own_batches = [batch for batch in of_stages if batch is not None]
        embedding = index.embedding or {}
        return cls(
            id=index.id,
            name=index.name,
            collection_id=index.collection_id,
            embedding_model=index.embedding_model,
            tokenizer=index.tokenizer_model,
            max_tokens=index.max_tokens,
            overlap_tokens=index.overlap_tokens,
            language=index.language,
            query_prefix=embedding.get("query_prefix", ""),
            document_prefix=embedding.get("document_prefix", ""),
            status=IndexState(index.state),
            reason=index.reason,
            stages=[
                IndexStageObject.of(stage, batch, name=STAGES[stage.number])
                for stage, batch in zip(stages, of_stages, strict=True)
            ],
            document_counts=DocumentCounts(**counts_of(index)),
            failed_codes=index.failed_codes,
            failures=[IndexFailure(**failure) for failure in index.failures],
            num_passages=index.num_passages,
            num_without_vector=index.num_without_vector,
            bytes=index.size_bytes,
            signature=index.signature,
            input_tokens=sum(batch.input_tokens for batch in own_batches),
            cost=in_currency(sum(prices.cost_picos(batch) for batch in own_batches)),
            currency=currency,
            priority=Priority(index.priority),
            completion_window=index.completion_window,
            metadata=index.request_metadata,
            created_at=unix_seconds(index.created_at),
            expires_at=unix_seconds(index.expires_at),
            ended_at=unix_seconds_or_none(index.ended_at),
            eta=unix_seconds_up(end.expected_at),
            eta_earliest=unix_seconds_up(end.earliest_at),
            eta_latest=unix_seconds_up(end.latest_at),
        )


class IndexPage(Page[IndexObject]):
    """Newest first."""


class DeletedIndex(DeletedObject):
    object: Literal["index"] = "index"


class PassageObject(WireModel):
    rank: int
    """From 0, among all passages found."""
    score: float
    """Comparable only within one search."""
    document_id: str
    document: str
    """Its name."""
    start: int
    """Offset into the document's text, like `end`."""
    end: int
    headings: list[str]
    """The headings above it, outermost first."""
    num_tokens: int
    text: str

    @classmethod
    def of(cls, passage: FoundPassage) -> Self:
        return cls(**asdict(passage))


class DroppedObject(WireModel):
    """A passage that was found but left out."""

    rank: int
    score: float
    document_id: str
    document: str
    start: int
    end: int
    num_tokens: int
    reason: LeftOut

    @classmethod
    def of(cls, dropped: DroppedPassage) -> Self:
        return cls(**asdict(dropped))


class SearchObject(WireModel):
    object: Literal["index.search"] = "index.search"
    index_id: str
    query: str
    mode: SearchMode
    batch_id: str | None
    """The batch that embedded the question; null if its vector was known or not needed."""
    num_tokens: int
    """Of all passages in `data`."""
    data: list[PassageObject]
    dropped: list[DroppedObject]

    @classmethod
    def of(
        cls,
        found: Found,
        *,
        index_id: str,
        query: str,
        mode: SearchMode,
        batch_id: str | None,
        order: PassageOrder,
    ) -> Self:
        chosen = sorted(found.chosen, key=lambda one: one.rank) if order is PassageOrder.SCORE else found.chosen
        return cls(
            index_id=index_id,
            query=query,
            mode=mode,
            batch_id=batch_id,
            num_tokens=found.num_tokens,
            data=[PassageObject.of(one) for one in chosen],
            dropped=[DroppedObject.of(one) for one in found.dropped],
        )
