"""A stage of an extraction or of an index: a node of a flow."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, Self, TypeVar

from api.schemas.batches import BatchUsage, RequestCounts, usage_of
from api.schemas.wire import WireModel, unix_seconds, unix_seconds_or_none
from flows.tables import FlowNode
from jobs.states import BatchState
from jobs.tables import Batch

Name = TypeVar("Name", bound=StrEnum)


class CourseStage(WireModel, Generic[Name]):
    name: Name
    batch_id: str | None
    """Null if the stage had nothing to do."""
    status: BatchState | None
    """Status of its batch; null if there is none or it was deleted."""
    request_counts: RequestCounts | None
    """Lines may be added to an extraction's stage until the stages before it have ended."""
    usage: BatchUsage | None
    begun_at: int
    done_at: int | None

    @classmethod
    def of(cls, stage: FlowNode, batch: Batch | None, *, name: Name) -> Self:
        counts = None
        if batch is not None:
            counts = RequestCounts(
                total=batch.num_requests or stage.num_lines,
                completed=batch.num_completed,
                failed=batch.num_failed,
                truncated=batch.num_truncated,
            )
        return cls(
            name=name,
            batch_id=stage.batch_id,
            status=None if batch is None else BatchState(batch.state),
            request_counts=counts,
            usage=None if batch is None else usage_of(batch),
            begun_at=unix_seconds(stage.begun_at),
            done_at=unix_seconds_or_none(stage.done_at),
        )
