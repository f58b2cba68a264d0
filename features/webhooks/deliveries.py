"""Deliveries to endpoints: claim, record attempts, retry, give up, replay.

Each call is a short transaction of its caller, and none is open during a request. The claim of a worker that dies
expires, and its deliveries are sent again: at least once, with the same id.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, extract, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks.endpoints import disable, get_endpoint
from features.webhooks.events import MAX_PENDING, num_pending
from features.webhooks.sending import Answer
from features.webhooks.states import DeliveryState
from features.webhooks.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.claims.claims import Claim, Claims, new_owner
from jobs.claims.statements import ClaimColumns
from jobs.database import transaction
from jobs.errors import ConflictError, LimitError, NotFoundError
from jobs.ids import new_id
from jobs.pagination import Page, read_page
from jobs.purges import Purge
from jobs.settings import Settings
from jobs.storage import Storage

CLAIM = timedelta(seconds=60)
"""Lease of a claimed delivery: longer than a request and the wait for recording it."""
PAUSES = tuple(timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 1800, 3600, 7200, 14400, 25200, 33400))
"""Pauses before the second attempt, the third …: 24 h in total, then a delivery is given up."""
_JITTER = 0.1  # plus or minus, so that deliveries that failed together are not retried together
LONGEST_RETRY_AFTER = timedelta(hours=1)
"""Longest `Retry-After` that is respected."""
FAILING_FOR = timedelta(days=5)
"""Time without any success after which an endpoint is disabled."""
KEPT_FOR = timedelta(days=14)
"""Retention of the log after the end of a delivery."""
MAX_ATTEMPTS_SHOWN = 20
_GONE = 410
_ROWS = 1000  # per transaction


DELIVERIES = Claims(
    WebhookDelivery,
    [DeliveryState.PENDING],
    columns=ClaimColumns(fence="fence", until="due_at", until_of_free="clock_timestamp()"),
    ends_with_state=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery(Claim):
    """A claimed delivery, with the values of its request."""

    endpoint_id: str
    tenant_id: str
    url: str
    signing_secrets: Sequence[str]
    event_id: str
    event_type: str
    event_data: Mapping[str, Any]
    event_at: int
    """In Unix seconds."""
    claimed_at: int
    """In Unix seconds."""
    payload_format: str

    @property
    def delivery_id(self) -> str:
        return self.id


def claim(session: Session, *, limit: int, a_tenant: int, busy: Mapping[str, int]) -> list[ClaimedDelivery]:
    """Claim up to `limit` due deliveries, longest due first: `a_tenant` of each tenant, minus those that are `busy`.

    This is one statement, which may be its own transaction.
    """
    allowed = {tenant_id: max(a_tenant - num, 0) for tenant_id, num in busy.items()}
    values = {"limit": limit, "a_tenant": a_tenant, "lease": CLAIM, "owner": new_owner()}
    values |= {"busy_tenants": list(allowed), "busy_allowed": list(allowed.values())}
    return [ClaimedDelivery(**row._mapping) for row in session.execute(_CLAIM, values)]


def record(session: Session, claimed: ClaimedDelivery, answer: Answer) -> DeliveryState:
    """Record the result of a request and release the claim; return the delivery's state. Raise FencedOutError.

    It locks the endpoint before the delivery, as deleting or disabling it does. An answer after the claim has expired
    does not change the endpoint either: the next attempt does.
    """
    is_success = answer.is_success
    failing_since = _note_health(session, claimed.endpoint_id, is_success=is_success)
    state, pause = _next(session, claimed, answer)
    values = {**claimed.guard, "after": state.value, "has_ended": pause is None, "pause": pause or timedelta(0)}
    if session.execute(_RECORD, values).one_or_none() is None:
        raise DELIVERIES.over(claimed)
    session.execute(_ATTEMPT, _attempt_values(claimed, answer))
    if answer.status_code == _GONE:
        disable(session, claimed.endpoint_id, reason="it answered 410 Gone")
    elif failing_since is not None:
        disable(session, claimed.endpoint_id, reason=f"every request failed since {failing_since}")
    return state


def _next(session: Session, claimed: ClaimedDelivery, answer: Answer) -> tuple[DeliveryState, timedelta | None]:
    """Return the state after an answer, and the pause before the next attempt."""
    if answer.is_success:
        return DeliveryState.DELIVERED, None
    num_tries = session.scalar(select(WebhookDelivery.num_tries).where(WebhookDelivery.id == claimed.delivery_id)) or 0
    if answer.status_code == _GONE or num_tries >= len(PAUSES):
        return DeliveryState.FAILED, None
    pause = PAUSES[num_tries] * random.uniform(1 - _JITTER, 1 + _JITTER)
    return DeliveryState.PENDING, max(pause, min(answer.retry_after or pause, LONGEST_RETRY_AFTER))


def _note_health(session: Session, endpoint_id: str, *, is_success: bool) -> str | None:
    """Record a success or failure of an endpoint; return since when all requests failed, if that is too long ago."""
    if is_success:
        session.execute(_HEALTHY, {"endpoint_id": endpoint_id})
        return None
    row = session.execute(_FAILING, {"endpoint_id": endpoint_id, "allowed": FAILING_FOR}).one_or_none()
    return None if row is None or not row.is_too_long else f"{row.failing_since:%Y-%m-%d %H:%M} UTC"


def _attempt_values(claimed: ClaimedDelivery, answer: Answer) -> dict[str, object]:
    return {
        "delivery_id": claimed.delivery_id,
        "number": claimed.fence,
        "milliseconds": answer.milliseconds,
        "status_code": answer.status_code,
        "answer": answer.text,
        "error": answer.error,
    }


def list_deliveries(
    session: Session, tenant_id: str, endpoint_id: str, *, after: str | None = None, limit: int = 20
) -> Page[WebhookDelivery]:
    """Return a page of an endpoint's log, newest first. Raise NotFoundError, or InputError on an unknown `after`."""
    endpoint = get_endpoint(session, tenant_id, endpoint_id)
    query = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint.id)
    return read_page(session, query, table=WebhookDelivery, tenant_id=tenant_id, after=after, limit=limit)


def attempts_of(session: Session, delivery_ids: Collection[str]) -> dict[str, list[WebhookAttempt]]:
    """Return the last attempts of each delivery, in order."""
    by_delivery: dict[str, list[WebhookAttempt]] = {delivery_id: [] for delivery_id in delivery_ids}
    query = select(WebhookAttempt).where(WebhookAttempt.delivery_id.in_(delivery_ids)).order_by(WebhookAttempt.number)
    for attempt in session.scalars(query):
        by_delivery[attempt.delivery_id].append(attempt)
    return {delivery_id: attempts[-MAX_ATTEMPTS_SHOWN:] for delivery_id, attempts in by_delivery.items()}


def replay(session: Session, tenant_id: str, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
    """Send a delivery again now, with the same event id; its pauses start over. A waiting one is sent now.

    Raise NotFoundError, ConflictError if the endpoint is disabled, LimitError if too many deliveries wait.
    """
    endpoint = get_endpoint(session, tenant_id, endpoint_id)
    session.refresh(endpoint, with_for_update={"key_share": True})
    if endpoint.disabled_at is not None:
        raise ConflictError(
            f"Webhook endpoint {endpoint_id!r} is disabled: {endpoint.disabled_reason}. Enable it first.",
            code="webhook_endpoint_disabled",
        )
    if num_pending(session, tenant_id) >= MAX_PENDING:
        raise LimitError(
            f"You have {MAX_PENDING:,} deliveries that wait, which is the limit. Wait until some have ended.",
            code="webhook_deliveries_exceeded",
        )
    replayed = session.scalar(
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id, WebhookDelivery.endpoint_id == endpoint.id)
        .values(state=DeliveryState.PENDING.value, due_at=func.now(), num_tries=0, ended_at=None, problem=None)
        .returning(WebhookDelivery)
        .execution_options(populate_existing=True)
    )
    if replayed is None:
        raise NotFoundError(f"Endpoint {endpoint_id!r} has no delivery with id {delivery_id!r}.", param="delivery_id")
    return replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The values of a test request to an endpoint."""

    url: str
    signing_secrets: Sequence[str]
    event_id: str
    at: int
    """The current time in Unix seconds."""
    payload_format: str


def sample_request(session: Session, endpoint: WebhookEndpoint) -> SampleRequest:
    """Return the values of a sample event for an endpoint; nothing is stored."""
    at = session.scalar(select(func.floor(extract("epoch", func.clock_timestamp()))))
    is_old_kept = endpoint.old_secret_until is not None and session.scalar(
        select(func.now() < endpoint.old_secret_until)
    )
    old = [endpoint.old_secret] if is_old_kept and endpoint.old_secret is not None else []
    return SampleRequest(
        url=endpoint.url,
        signing_secrets=[endpoint.secret, *old],
        event_id=new_id("evt"),
        at=int(at or 0),
        payload_format=endpoint.payload_format,
    )


def purges(maker: sessionmaker[Session], _storage: Storage, _settings: Settings) -> Sequence[Purge]:
    """Return the purges of the webhooks' log, for `Feature.purges`."""
    return (Purge(what="webhooks", chore="forget webhooks", step=lambda: forget(maker)),)


def forget(maker: sessionmaker[Session]) -> int:
    """Delete deliveries past their retention; return their number."""
    total = 0
    is_left = True
    while is_left:
        with transaction(maker) as session:
            old = select(WebhookDelivery.id).where(WebhookDelivery.ended_at < func.now() - KEPT_FOR).limit(_ROWS)
            ids = session.scalars(old.with_for_update(skip_locked=True)).all()
            session.execute(delete(WebhookDelivery).where(WebhookDelivery.id.in_(ids)))
            session.execute(delete(WebhookAttempt).where(WebhookAttempt.delivery_id.in_(ids)))
        total += len(ids)
        is_left = bool(ids)
    return total


# Tenants one by one through the index, and for each the few that have been due longest, so that a tenant with ten
# thousand failing deliveries costs a poll no more than one with a single delivery. Arrays instead of joins, as in
# `jobs.batches.planned`.
_CLAIM = text(f"""
    WITH RECURSIVE waiting AS (
        (SELECT tenant_id FROM webhook_delivery WHERE state = 'pending' ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT delivery.tenant_id FROM webhook_delivery AS delivery
            WHERE delivery.state = 'pending' AND delivery.tenant_id > waiting.tenant_id
            ORDER BY delivery.tenant_id LIMIT 1
        )
        FROM waiting WHERE waiting.tenant_id IS NOT NULL
    ), allowed AS (
        SELECT waiting.tenant_id, coalesce(busy.allowed, :a_tenant) AS num FROM waiting
        LEFT JOIN unnest(CAST(:busy_tenants AS text[]), CAST(:busy_allowed AS int[])) AS busy (tenant_id, allowed)
            ON busy.tenant_id = waiting.tenant_id
        WHERE waiting.tenant_id IS NOT NULL
    ), due AS (
        SELECT own.id FROM allowed CROSS JOIN LATERAL (
            SELECT id, due_at FROM webhook_delivery
            WHERE state = 'pending' AND webhook_delivery.tenant_id = allowed.tenant_id AND {DELIVERIES.sql.is_over}
            ORDER BY due_at LIMIT allowed.num
        ) AS own
        ORDER BY own.due_at LIMIT :limit
    ), mine AS (
        SELECT id FROM webhook_delivery
        WHERE id = ANY(ARRAY(SELECT id FROM due)) AND state = 'pending' AND {DELIVERIES.sql.is_over}
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE webhook_delivery SET {DELIVERIES.sql.taken} FROM webhook_endpoint AS endpoint
    WHERE webhook_delivery.id = ANY(ARRAY(SELECT id FROM mine)) AND endpoint.id = webhook_delivery.endpoint_id
    RETURNING webhook_delivery.id, state, claimed_by AS owner, fence, endpoint_id, webhook_delivery.tenant_id,
        event_id, event_type, event_data, url, payload_format,
        array_remove(ARRAY[secret, CASE WHEN old_secret_until > now() THEN old_secret END], NULL) AS signing_secrets,
        CAST(floor(extract(epoch FROM webhook_delivery.created_at)) AS bigint) AS event_at,
        CAST(floor(extract(epoch FROM clock_timestamp())) AS bigint) AS claimed_at
""")

_RECORD = text(f"""
    UPDATE webhook_delivery SET {DELIVERIES.sql.put_off}, state = :after, num_tries = num_tries + 1,
        ended_at = CASE WHEN :has_ended THEN now() END
    WHERE {DELIVERIES.sql.is_held} RETURNING id
""")

# It does not lock endpoints that were healthy before.
_HEALTHY = text(
    "UPDATE webhook_endpoint SET failing_since = NULL WHERE id = :endpoint_id AND failing_since IS NOT NULL"
)

# An outage counts from its first failure while deliveries keep failing. If none waits for a retry or was given up in
# the last two days, the outage may be over, and this failure begins another. A delivery is retried for a day, so those
# of the last four days suffice.
_FAILING = text("""
    UPDATE webhook_endpoint AS endpoint SET failing_since = CASE
        WHEN failing_since < now() - interval '2 days' AND NOT EXISTS (
            SELECT FROM webhook_delivery AS delivery
            WHERE delivery.endpoint_id = endpoint.id AND delivery.created_at > now() - interval '4 days'
                AND (
                    delivery.state = 'failed' AND delivery.ended_at > now() - interval '2 days'
                    OR delivery.state = 'pending' AND delivery.num_tries > 0
                )
        ) THEN now()
        ELSE coalesce(failing_since, now())
    END
    WHERE id = :endpoint_id AND disabled_at IS NULL
    RETURNING failing_since, failing_since < now() - CAST(:allowed AS interval) AS is_too_long
""")

_ATTEMPT = text("""
    INSERT INTO webhook_attempt (delivery_id, number, started_at, milliseconds, status_code, answer, error)
    VALUES (:delivery_id, :number, clock_timestamp() - make_interval(secs => :milliseconds / 1000.0), :milliseconds,
        :status_code, :answer, :error)
""")
