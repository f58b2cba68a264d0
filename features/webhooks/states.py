"""States of deliveries, and forms of their bodies."""

from __future__ import annotations

from enum import StrEnum


class DeliveryState(StrEnum):
    """States of what a webhook is to be told."""

    PENDING = "pending"  # to be sent, or to be sent again
    DELIVERED = "delivered"  # an answer of 2xx came
    FAILED = "failed"  # given up; a replay makes it pending again


class PayloadFormat(StrEnum):
    """What an endpoint is sent."""

    EVENT = "event"  # OpenAI's object, with ids
    SLACK = "slack"  # {"text": …}, as Slack's incoming webhooks and those of other chats take it
