"""The signed payload of an event: OpenAI's object, or a text for chats. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.webhooks.signing import signed_headers
from features.webhooks.states import PayloadFormat


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
    payload_format: str = PayloadFormat.EVENT,
) -> SignedEvent:
    """Return the payload of an event of `event_at`, sent at `sent_at`, both in Unix seconds."""
    payload: dict[str, Any] = {
        "id": event_id,
        "object": "event",
        "created_at": event_at,
        "type": event_type,
        "data": data,
    }
    if payload_format == PayloadFormat.SLACK:
        payload = {"text": text_of(event_type, data)}
    body = json.dumps(payload, separators=(",", ":")).encode()
    return SignedEvent(body=body, headers=signed_headers(event_id, sent_at, body, signing_secrets=signing_secrets))


def text_of(event_type: str, data: Mapping[str, Any]) -> str:
    """Return an event as a text for a chat: the text that it has, else its type with its ids."""
    ids = (f"{name} {value}" for name, value in data.items() if value is not None)
    text = str(data["text"]) if "text" in data else f"{event_type}: {', '.join(ids)}"
    # Names come from users: without this, `<!channel>` would call everybody.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
