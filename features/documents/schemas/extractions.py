"""`/v1/extractions`: bodies of extractions, their progress, and their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import ConfigDict, Field

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
from features.documents.stages import DocumentStage, stage_of
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, ExtractionNode
from flows.ends import FlowEnd
from jobs.accounts import prices
from jobs.accounts.money import in_currency
from jobs.states import Priority
from jobs.tables import Batch


class DocumentCounts(WireModel):
    total: int
    completed: int
    """Number with fields; counted at the end, like `failed`."""
    failed: int


class StageObject(CourseStage[DocumentStage]):
    name: DocumentStage
    """`ask_again` and `ground_again` repeat as long as something is left to ask."""


class ExtractionObject(ListedObject):
    object: Literal["extraction"] = "extraction"
    collection_id: str
    index_id: str | None
    """Null if the documents of the collection are asked; otherwise an index of it is asked as one document."""
    model: str
    schema_: Annotated[dict[str, Any], Field(serialization_alias="schema")]
    """As given by the caller."""
    quotes: bool
    again: bool
    second_reading: bool
    cover: bool
    examples: str | None
    """The gold file, or the extraction whose reviews are gold."""
    status: ExtractionState
    reason: str | None
    """Why it ended without completing, or what it waits for."""
    stages: list[StageObject]
    """Those that have begun."""
    document_counts: DocumentCounts
    failures: dict[str, int]
    """Numbers of failed documents, by code."""
    num_to_review: int
    """Number of values, including nulls, that a person should review."""
    input_tokens: int
    """For all its batches."""
    output_tokens: int
    cost: str
    """For all its batches, in units of the currency."""
    currency: str
    output_file_id: str | None
    """JSONL, one record per document."""
    parquet_file_id: str | None
    """The fields as a table, if requested."""
    priority: Priority
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    ended_at: int | None
    eta: int | None
    """When it is expected to end, by its own pace so far; null while unknown, and after its end."""
    eta_earliest: int | None
    """With `eta_latest` the range of the end by its pace; null if `eta` is. How often it held: docs/flows.md."""
    eta_latest: int | None

    @classmethod
    def of(
        cls,
        extraction: Extraction,
        stages: Sequence[ExtractionNode],
        batches: Mapping[str, Batch],
        *,
        end: FlowEnd,
        currency: str,
    ) -> Self:
        """`batches` are those of the stages by id, and any others that worked for the extraction."""
        passes = extraction.plan.get("passes") or {}  # not parsed: a plan of another release must not fail
        of_stages = [batches.get(stage.batch_id or "") for stage in stages]
        return cls(
            id=extraction.id,
            collection_id=extraction.collection_id,
            index_id=(extraction.plan.get("corpus") or {}).get("index_id"),
            model=extraction.model,
            schema_=orjson.loads(extraction.plan["schema"]),
            quotes=extraction.plan["quotes"],
            again=extraction.again,
            second_reading=passes.get("second_reading", False),
            cover=passes.get("cover", False),
            examples=extraction.plan.get("examples_of"),
            status=ExtractionState(extraction.state),
            reason=extraction.reason,
            stages=[
                StageObject.of(stage, batch, name=stage_of(stage))
                for stage, batch in zip(stages, of_stages, strict=True)
            ],
            document_counts=DocumentCounts(
                total=extraction.num_documents,
                completed=extraction.num_done,
                failed=sum(extraction.failed_codes.values()),
            ),
            failures=extraction.failed_codes,
            num_to_review=extraction.num_to_review,
            input_tokens=sum(batch.input_tokens for batch in batches.values()),
            output_tokens=sum(batch.output_tokens for batch in batches.values()),
            cost=in_currency(sum(prices.cost_picos(batch) for batch in batches.values())),
            currency=currency,
            output_file_id=extraction.output_file_id if extraction.state == ExtractionState.COMPLETED else None,
            parquet_file_id=extraction.parquet_file_id,
            priority=Priority(extraction.priority),
            completion_window=extraction.completion_window,
            metadata=extraction.request_metadata,
            created_at=unix_seconds(extraction.created_at),
            expires_at=unix_seconds(extraction.expires_at),
            ended_at=unix_seconds_or_none(extraction.ended_at),
            eta=unix_seconds_up(end.expected_at),
            eta_earliest=unix_seconds_up(end.earliest_at),
            eta_latest=unix_seconds_up(end.latest_at),
        )


class ExtractionPage(Page[ExtractionObject]):
    """Newest first."""


class DeletedExtraction(DeletedObject):
    object: Literal["extraction"] = "extraction"


class RecordProblem(WireModel):
    code: str
    message: str
    page: int | None


class RecordLine(WireModel):
    """The result of a document; docs/extraction.md describes the evidence."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)  # `item_changes` may be left out

    document_id: str
    document: str
    """Its name."""
    sha256: str
    status: Literal["done", "failed", "provisional"]
    """`provisional` while the document is asked further questions: again, or with found values covered."""
    error: RecordProblem | None
    notes: list[str]
    """Parts of the document that were not read, how it was read, and failed passes, in words."""
    fields: dict[str, Any] | None
    evidence: list[dict[str, Any]]
    item_changes: list[dict[str, Any]] = Field(default_factory=list)
    """Items that people added to lists and dropped from them; left out if there are none."""
    usage: dict[str, int]
