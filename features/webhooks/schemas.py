"""`/v1/webhook_endpoints`: an endpoint as OpenAI has it, then ours; and what was sent to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from api.schemas.wire import DeletedObject, ListedObject, Page, WireModel, unix_seconds, unix_seconds_or_none
from features.webhooks.signing import hint_of
from features.webhooks.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.states import DeliveryState, EventType


class WebhookEndpointObject(ListedObject):
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    event_types: list[EventType]
    name: str
    signing_secret_hint: str
    url: str
    updated_at: int
    """Of its configuration or secret."""
    disabled_at: int | None
    """Ours, as all that follow: since then it is sent nothing."""
    disabled_reason: str | None
    failing_since: int | None
    """The first failure after the last success."""

    @classmethod
    def of(cls, endpoint: WebhookEndpoint) -> Self:
        return cls(**_fields_of(endpoint))


class WebhookEndpointWithSecret(WebhookEndpointObject):
    """The only answers with the secret: to the create call, and to one for a new secret."""

    signing_secret: str

    @classmethod
    def of(cls, endpoint: WebhookEndpoint) -> Self:
        return cls(**_fields_of(endpoint), signing_secret=endpoint.secret)


def _fields_of(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "created_at": unix_seconds(endpoint.created_at),
        "event_types": endpoint.event_types,
        "name": endpoint.name,
        "signing_secret_hint": hint_of(endpoint.secret),
        "url": endpoint.url,
        "updated_at": unix_seconds(endpoint.updated_at),
        "disabled_at": unix_seconds_or_none(endpoint.disabled_at),
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": unix_seconds_or_none(endpoint.failing_since),
    }


class WebhookEndpointPage(Page[WebhookEndpointObject]):
    """Newest first."""


class DeletedWebhookEndpoint(DeletedObject):
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"


class WebhookTestResult(WireModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    event_type: EventType
    status_code: int
    """What the endpoint answered."""
    success: bool
    """It answered 2xx: a delivery would not be tried again."""
    webhook_endpoint_id: str


class WebhookEventTypes(WireModel):
    object: Literal["list"] = "list"
    data: list[EventType]


class WebhookAttemptObject(WireModel):
    started_at: int
    milliseconds: int
    status_code: int | None
    """Null where no answer came."""
    answer: str | None
    """The first 500 bytes of its body."""
    error: str | None
    """Why there is no answer."""

    @classmethod
    def of(cls, attempt: WebhookAttempt) -> Self:
        return cls(
            started_at=unix_seconds(attempt.started_at),
            milliseconds=attempt.milliseconds,
            status_code=attempt.status_code,
            answer=attempt.answer,
            error=attempt.error,
        )


class WebhookEventObject(WireModel):
    """What is sent."""

    id: str
    """Also the `webhook-id` of every request that sends it."""
    object: Literal["event"] = "event"
    created_at: int
    type: EventType
    data: dict[str, Any]


class WebhookDeliveryObject(ListedObject):
    object: Literal["webhook_delivery"] = "webhook_delivery"
    event: WebhookEventObject
    status: DeliveryState
    next_attempt_at: int | None
    """While it is pending."""
    ended_at: int | None
    problem: str | None
    """Why it was given up without another request."""
    attempts: list[WebhookAttemptObject]
    """The last 20."""

    @classmethod
    def of(cls, delivery: WebhookDelivery, attempts: Sequence[WebhookAttempt]) -> Self:
        is_pending = delivery.state == DeliveryState.PENDING
        created_at = unix_seconds(delivery.created_at)
        return cls(
            id=delivery.id,
            event=WebhookEventObject(
                id=delivery.event_id, created_at=created_at, type=delivery.event_type, data=delivery.event_data
            ),
            status=delivery.state,
            next_attempt_at=unix_seconds(delivery.due_at) if is_pending else None,
            ended_at=unix_seconds_or_none(delivery.ended_at),
            problem=delivery.problem,
            attempts=[WebhookAttemptObject.of(attempt) for attempt in attempts],
        )


class WebhookDeliveryPage(Page[WebhookDeliveryObject]):
    """Newest first; kept for 14 days after their end."""
