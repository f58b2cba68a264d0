"""What the signed cookie of a browser says: a key by its hash, which opens nothing by itself.

The secret that signs is a row: one for all replicas of the API, made by the first that needs it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

from itsdangerous import BadSignature, URLSafeTimedSerializer
from sqlalchemy import text
from sqlalchemy.orm import Session

LASTS = timedelta(hours=12)
_SALT = "browser session"
_SECRET_BYTES, _TOKEN_BYTES = 32, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSession:
    """What a cookie says."""

    key_hash: str
    token: str
    """What a page of ours sends along with whatever changes something; a page of others cannot know it."""


def begin(session: Session, key_hash: str) -> str:
    """Return the value of a cookie for a key."""
    written: str = _signer(session).dumps([key_hash, secrets.token_urlsafe(_TOKEN_BYTES)])
    return written


def read(session: Session, value: str) -> BrowserSession | None:
    """Return what a cookie says; None where it is not ours, was changed, or is older than LASTS."""
    try:
        key_hash, token = _signer(session).loads(value, max_age=int(LASTS.total_seconds()))
    except (BadSignature, ValueError, TypeError):
        return None
    return BrowserSession(key_hash=key_hash, token=token)


def _signer(session: Session) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(_secret(session), salt=_SALT)


def _secret(session: Session) -> str:
    """Return the secret of this database. Deleting its row signs everybody out."""
    found: str | None = session.scalar(_READ)
    if found is None:
        session.execute(_MAKE, {"secret": secrets.token_urlsafe(_SECRET_BYTES)})
        found = session.scalar(_READ)
        assert found is not None, "it was just made, by us or by another"
    return found


_READ = text("SELECT secret FROM cookie_secret")
_MAKE = text("INSERT INTO cookie_secret (id, secret) VALUES (1, :secret) ON CONFLICT DO NOTHING")
