"""`GET /v1/batches/{id}/decisions`: the scheduler's decisions about a batch."""

from __future__ import annotations

from typing import Literal, Self

from fastapi import APIRouter

from api.auth import TenantDep
from api.openapi import failures
from api.schemas.wire import WireModel, unix_seconds
from api.sessions import SessionDep
from jobs import decisions
from jobs.batches import lifecycle
from jobs.decisions import Kind
from jobs.tables import Decision

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))


class DecisionObject(WireModel):
    """One kind of decision about a batch, with the number of times it was made."""

    kind: Kind | str
    """Another value was written by a newer release."""
    worker: str | None
    """The worker that it concerns, if any."""
    count: int
    """Number of chunks or times; for `prefix_found`, of tokens."""
    first_at: int
    last_at: int
    message: str
    """The decision as a sentence."""

    @classmethod
    def of(cls, decision: Decision) -> Self:
        return cls(
            kind=decisions.known_kind(decision.kind),
            worker=decision.subject or None,
            count=decision.num,
            first_at=unix_seconds(decision.first_at),
            last_at=unix_seconds(decision.last_at),
            message=decisions.sentence(decision),
        )


class DecisionList(WireModel):
    """At most 200, the latest first; each is kept for a day after its last time."""

    object: Literal["list"] = "list"
    data: list[DecisionObject]


@router.get("/{batch_id}/decisions", operation_id="listDecisions", responses=failures(404))
def list_decisions(batch_id: str, session: SessionDep, *, tenant: TenantDep) -> DecisionList:
    batch = lifecycle.get_batch(session, tenant.id, batch_id)
    return DecisionList(data=[DecisionObject.of(decision) for decision in decisions.read(session, batch.id)])
