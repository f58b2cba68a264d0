"""The signed payload of an event: OpenAI's object. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.webhooks.signing import signed_headers


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEvent:
    """The body of a request, and its headers."""

    body: bytes
    headers: Mapping[str, str]


def signed_event(
    event_id: str,
    event_type: str,
    data: Mapping[str, Any],
    *,
    event_at: int,
    sent_at: int,
    signing_secrets: Sequence[str],
) -> SignedEvent:
    """Return the payload of an event of `event_at`, sent at `sent_at`, both in Unix seconds."""
    payload = {"id": event_id, "object": "event", "created_at": event_at, "type": event_type, "data": data}
    body = json.dumps(payload, separators=(",", ":")).encode()
    return SignedEvent(body=body, headers=signed_headers(event_id, sent_at, body, signing_secrets=signing_secrets))
