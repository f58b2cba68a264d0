"""`/v1/webhook_endpoints`: an endpoint, with OpenAI's fields first, then ours; and its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from api.schemas.wire import DeletedObject, ListedObject, Page, WireModel, unix_seconds, unix_seconds_or_none
from features.webhooks.signing import hint_of
from features.webhooks.states import DeliveryState, PayloadFormat
from features.webhooks.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.states import EventType


class WebhookEndpointObject(ListedObject):
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    event_types: list[EventType]
    name: str
    signing_secret_hint: str
    url: str
    updated_at: int
    """Last change of its configuration or secret."""
    disabled_at: int | None
    """Ours, like all fields that follow: nothing is sent since then."""
    disabled_reason: str | None
    failing_since: int | None
    """The first failure after the last success."""
    format: PayloadFormat
    """`event`: OpenAI's object; `slack`: a text, for incoming webhooks of chats."""

    @classmethod
    def of(cls, endpoint: WebhookEndpoint) -> Self:
        return cls(**_fields_of(endpoint))


class WebhookEndpointWithSecret(WebhookEndpointObject):
    """An endpoint with its secret, which is only in the responses to creation and rotation."""

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
        "format": endpoint.payload_format,
    }


class WebhookEndpointPage(Page[WebhookEndpointObject]):
    """Newest first."""


class DeletedWebhookEndpoint(DeletedObject):
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"


class WebhookTestResult(WireModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    event_type: EventType
    status_code: int
    """The endpoint's status code."""
    success: bool
    """Whether it answered 2xx, so that a delivery would not be retried."""
    webhook_endpoint_id: str


class WebhookEventTypes(WireModel):
    object: Literal["list"] = "list"
    data: list[EventType]


class WebhookAttemptObject(WireModel):
    started_at: int
    milliseconds: int
    status_code: int | None
    """Null without an answer."""
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
    """The event that is sent."""

    id: str
    """Also the `webhook-id` of every request with it."""
    object: Literal["event"] = "event"
    created_at: int
    type: EventType
    data: dict[str, Any]


class WebhookDeliveryObject(ListedObject):
    object: Literal["webhook_delivery"] = "webhook_delivery"
    event: WebhookEventObject
    status: DeliveryState
    next_attempt_at: int | None
    """Only while it is pending."""
    ended_at: int | None
    problem: str | None
    """Why it failed without another request."""
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
    """Newest first; deliveries are kept for 14 days after their end."""
