"""One row of each table whose rows are claimed, and how it is claimed, released and moved on there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.tables import Pipeline, Run
from features.reports import mails
from features.reports.mails import MAILS
from features.reports.tables import DueReport
from features.webhooks import deliveries
from features.webhooks.deliveries import DELIVERIES
from features.webhooks.tables import WebhookDelivery
from flows.states import CLAIMABLE_STATES
from flows.tables import Flow
from jobs.batches import exact_counts
from jobs.batches.claims import FINALISATIONS, VALIDATIONS
from jobs.batches.exact_counts import COUNTS
from jobs.batches.lost_leases import reap_expired
from jobs.chunks import claiming, leasing
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk
from jobs.claims.claims import Claims, Held, HeldRows
from jobs.errors import FencedOutError
from jobs.ids import new_id
from jobs.tables import Batch, Chunk, InputCount, Tenant, Upload
from jobs.tables.base import Base
from jobs.uploads.completing import COMPLETIONS
from tests.database_roles import as_superuser_do
from tests.features.webhooks.builders import add_endpoint

LEASE = timedelta(minutes=1)
MakeBatch = Callable[..., Batch]

CLAIMS: dict[str, tuple[HeldRows[Any], str]] = {
    "validation": (VALIDATIONS, "in_progress"),
    "finalisation": (FINALISATIONS, "completed"),
    "flow": (Claims(Flow, CLAIMABLE_STATES), "succeeded"),
    "upload": (COMPLETIONS, "cancelled"),
    "count": (COUNTS, "counted"),
    "delivery": (DELIVERIES, "failed"),
    "report": (MAILS, "sent"),
    "chunk": (LEASES, "withdrawn"),
}
"""The claimer of each kind of row, and a state in which the row has no owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that workers compete for; each call is a transaction of its own."""

    kind: str
    id: Any
    maker: sessionmaker[Session]

    @property
    def claims(self) -> HeldRows[Any]:
        return CLAIMS[self.kind][0]

    def take(self, worker: str = "worker_1") -> Held | None:
        """Claim the row as a worker of its kind does, or return None if it cannot be claimed.

        A chunk's claim names its `worker`, which may have had it before; every other claim has a new owner.
        """
        with self.maker.begin() as session:
            return _take(session, self, worker)

    def give_up(self, held: Held) -> None:
        """Release the row; a worker that has lost it changes nothing."""
        with self.maker.begin() as session:
            if isinstance(held, ClaimedChunk):
                _release(session, held)
            else:
                assert isinstance(self.claims, Claims)
                self.claims.give_up(session, held)

    def renew(self, held: Held) -> None:
        with self.maker.begin() as session:
            self.claims.renew(session, held, lease=LEASE)

    def confirm(self, held: Held) -> None:
        with self.maker.begin() as session:
            self.claims.confirm(session, held)

    def hold(self, held: Held) -> None:
        with self.maker.begin() as session:
            self.claims.hold(session, held)

    def lock(self, held: Held) -> None:
        with self.maker.begin() as session:
            row = self.claims.lock(session, held)
            assert self.id == row.id

    def lapse(self) -> None:
        """Let the claim expire."""
        until = self.claims.columns.until
        self._change(f"UPDATE {self.claims.kind} SET {until} = clock_timestamp() - interval '1 s' WHERE id = :id")

    def restore(self) -> None:
        """Set the row to its state in a backup from before its last claim."""
        fence, owner = self.claims.columns.fence, self.claims.columns.owner
        state = ", state = 'ready'" if self.kind == "chunk" else ""
        self.lapse()
        self._change(f"UPDATE {self.claims.kind} SET {fence} = {fence} - 1, {owner} = NULL{state} WHERE id = :id")

    def move_on(self) -> None:
        """Put the row into a state without an owner; claims that do not end with the state are released, too."""
        kind, owner = self.claims.kind, self.claims.columns.owner
        after = CLAIMS[self.kind][1]
        given_up = f", {owner} = NULL" if self.kind == "flow" else ""
        self._change(f"UPDATE {kind} SET state = '{after}'{given_up} WHERE id = :id")

    def delete(self) -> None:
        with self.maker() as session:
            as_superuser_do(session, f"DELETE FROM {self.claims.kind} WHERE id = '{self.id}'")

    def content(self) -> dict[str, Any] | None:
        """Return the row's columns, or None."""
        with self.maker() as session:
            query = text(f"SELECT * FROM {self.claims.kind} WHERE id = :id")
            found = session.execute(query, {"id": self.id}).one_or_none()
            return None if found is None else found._asdict()

    def _change(self, statement: str) -> None:
        with self.maker.begin() as session:
            session.execute(text(statement), {"id": self.id})


def _take(session: Session, row: Row, worker: str) -> Held | None:
    if row.kind == "delivery":
        found = deliveries.claim(session, limit=1, a_tenant=1, busy={})
        return found[0] if found else None
    if row.kind == "report":
        return mails.claim(session)
    if row.kind == "count":
        return exact_counts.claim(session, model="m", lease=LEASE)
    if row.kind == "chunk":
        reap_expired(session, lease=LEASE)
        return claiming.claim_chunk(session, row.id, worker_id=worker, lease=LEASE)
    assert isinstance(row.claims, Claims)
    return row.claims.claim(session, row.id, lease=LEASE)


def _release(session: Session, held: ClaimedChunk) -> None:
    try:
        leasing.release(session, held)
    except FencedOutError:
        session.rollback()


def add_row(
    kind: str, session: Session, maker: sessionmaker[Session], tenant: Tenant, make_batch: MakeBatch, run: MakeBatch
) -> Row:
    """Insert a row of a kind that any worker may claim; committed."""
    if kind == "chunk":
        batch = run(1)
        chunk_id = session.scalars(select(Chunk.id).where(Chunk.batch_id == batch.id)).one()
        session.commit()
        return Row(kind=kind, id=chunk_id, maker=maker)
    if kind in ("validation", "finalisation"):
        batch = make_batch(state="validating" if kind == "validation" else "finalizing", outcome=_outcome(kind))
        return Row(kind=kind, id=batch.id, maker=maker)
    added = _new(kind, session, tenant, make_batch)
    session.add(added)
    session.commit()
    return Row(kind=kind, id=getattr(added, "id"), maker=maker)  # noqa: B009 - each of these tables has one


def _outcome(kind: str) -> str | None:
    return "completed" if kind == "finalisation" else None


def _new(kind: str, session: Session, tenant: Tenant, make_batch: MakeBatch) -> Base:
    later = datetime.now(UTC) + timedelta(days=1)
    own: dict[str, Any] = {"id": new_id(kind), "tenant_id": tenant.id}
    if kind == "upload":
        return Upload(**own, purpose="batch", filename="f", mime_type="t", size_bytes=1, expires_at=later)
    if kind == "count":
        asked = {"endpoint": "/v1/chat/completions", "model": "m", "priority": "normal", "completion_window": "24h"}
        return InputCount(**own, input_file_id=make_batch().input_file_id, **asked)
    if kind == "delivery":
        endpoint = add_endpoint(session, tenant.id)
        event = {"event_id": "evt_1", "event_type": "batch.failed", "event_data": {}}
        return WebhookDelivery(**own, endpoint_id=endpoint.id, due_at=func.now(), **event)
    if kind in ("flow", "report"):
        pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant.id, name="p", definition={})
        session.add(pipeline)
        session.flush()
        if kind == "report":
            mail = {"mail_to": ["a@example.com"], "include_rows": False, "state": "pending"}
            return DueReport(**own, pipeline_id=pipeline.id, day=later.date(), **mail)
        times = dict.fromkeys(("scheduled_for", "interval_start", "interval_end"), later)
        return Run(**own, pipeline_id=pipeline.id, kind="manual", state="running", **times)
    raise AssertionError(kind)
