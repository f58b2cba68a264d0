"""Secrets and signatures of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, in base64.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. Pure functions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

_PREFIX = "whsec_"
_SECRET_BYTES = 32  # the specification requires 24 to 64
_HINT_CHARACTERS = 4


def new_secret() -> str:
    """Return `whsec_` and 256 random bits in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def hint_of(secret: str) -> str:
    """Return the part of a secret that lists show: enough to tell two apart."""
    return f"{_PREFIX}…{secret[-_HINT_CHARACTERS:]}"


def signed_headers(event_id: str, timestamp: int, body: bytes, *, signing_secrets: Sequence[str]) -> dict[str, str]:
    """Return the three headers of a request; with several secrets, a receiver may verify with any of them."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{_signature(secret, signed)}" for secret in signing_secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
