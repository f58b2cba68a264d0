"""States of deliveries."""

from __future__ import annotations

from enum import StrEnum


class DeliveryState(StrEnum):
    """States of what a webhook is to be told."""

    PENDING = "pending"  # to be sent, or to be sent again
    DELIVERED = "delivered"  # an answer of 2xx came
    FAILED = "failed"  # given up; a replay makes it pending again
