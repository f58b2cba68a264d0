"""API keys: create, rotate and revoke them, and authenticate their secrets.

Secrets are 256 random bits, and only their SHA-256 is stored.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Text, any_, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from jobs.accounts import browser_sessions
from jobs.accounts.secret_hashes import hash_secret
from jobs.errors import AuthenticationError, ConflictError, ForbiddenError, InputError, NotFoundError
from jobs.ids import new_id
from jobs.settings import MAX_DAYS
from jobs.states import Scope
from jobs.tables import ApiKey, Tenant

KEY_PREFIX = "tm-"
TENANT_SCOPES = (Scope.SUBMIT, Scope.READ)
"""Scopes that a tenant's key may have, and has by default."""
MAX_NAME_CHARACTERS = 100
MAX_OVERLAP = timedelta(days=30)
_SECRET_BYTES = 32
_KEY_CHARACTERS = len(KEY_PREFIX) + 43  # 32 bytes in base64
_HINT_CHARACTERS = 10  # of a key, shown in lists: the prefix and 7 of its random characters
_SECRETS = re.compile(rf"({KEY_PREFIX}[\w-]{{7}})[\w-]{{36}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The owner of a secret and its scopes."""

    tenant: Tenant | None
    """None: an operator's key, which has only scope admin."""
    key_id: str
    key_hash: str
    """Of the secret that was sent: a key that is being rotated has two."""
    scopes: frozenset[Scope]

    def require(self, scope: Scope) -> None:
        """Raise ForbiddenError where the key lacks this scope, or its tenant is disabled and would submit."""
        if scope not in self.scopes:
            scopes = " and ".join(sorted(self.scopes))
            whose = "Operators' keys" if scope is Scope.ADMIN else "Keys of tenants"
            raise ForbiddenError(
                f"This call needs a key with scope {scope.value}; your key has {scopes}. {whose} may have "
                f"{scope.value}: send such a key, or ask your operator for one.",
                code="insufficient_scope",
            )
        if scope is Scope.SUBMIT and self.owner().disabled_at is not None:
            raise ForbiddenError(
                "Your tenant is disabled: nothing new is accepted and nothing may be changed. What it has can be read, "
                "and what was accepted runs on. Ask your operator.",
                code="tenant_disabled",
            )

    def owner(self) -> Tenant:
        """Return the tenant. Raises ForbiddenError for an operator's key, which acts for none."""
        if self.tenant is None:
            raise ForbiddenError("An operator's key acts for no tenant; send a tenant's.", code="insufficient_scope")
        return self.tenant


def create_key(
    session: Session,
    tenant_id: str | None,
    *,
    scopes: Collection[Scope] | None = None,
    name: str | None = None,
    lifetime: timedelta | None = None,
) -> tuple[ApiKey, str]:
    """Create a key; return its row and the secret (`tm-` + 256 random bits), which cannot be read again.

    `tenant_id` None makes an operator's key. Raises NotFoundError, or InputError for invalid values.
    """
    if tenant_id is not None and session.get(Tenant, tenant_id) is None:
        raise NotFoundError(f"there is no tenant {tenant_id!r}")
    secret = _new_secret()
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        key_hash=hash_secret(secret),
        hint=secret[:_HINT_CHARACTERS],
        scopes=_checked_scopes(scopes, is_operator=tenant_id is None),
        name=_checked_name(name),
        expires_at=None if lifetime is None else func.now() + _checked_lifetime(lifetime),
    )
    session.add(key)
    session.flush()
    session.refresh(key)
    return key, secret


def _new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def _checked_scopes(scopes: Collection[Scope] | None, *, is_operator: bool) -> list[str]:
    allowed = (Scope.ADMIN,) if is_operator else TENANT_SCOPES
    requested = allowed if scopes is None else scopes
    if not requested or not set(requested) <= set(allowed):
        whose = "an operator's key has" if is_operator else "a tenant's key may have"
        chosen_text = ", ".join(requested) or "none"
        raise InputError(f"scopes are {chosen_text}; {whose} {' and '.join(allowed)}", param="scopes")
    return [scope.value for scope in allowed if scope in requested]


def _checked_name(name: str | None) -> str | None:
    if name is not None and not 1 <= len(name.strip()) <= len(name) <= MAX_NAME_CHARACTERS:
        raise InputError(f"the key's name is {name[:120]!r}; give 1 to {MAX_NAME_CHARACTERS} characters", param="name")
    return name


def _checked_lifetime(lifetime: timedelta) -> timedelta:
    if not timedelta() < lifetime <= timedelta(days=MAX_DAYS):
        raise InputError(f"the key's lifetime is {lifetime}; give up to {MAX_DAYS} days", param="lifetime")
    return lifetime


def list_keys(session: Session, tenant_id: str | None) -> Sequence[ApiKey]:
    """Return a tenant's keys, or the operators', revoked ones included, oldest first."""
    query = select(ApiKey).where(ApiKey.tenant_id.is_not_distinct_from(tenant_id))
    return session.scalars(query.order_by(ApiKey.created_at, ApiKey.id)).all()


def get_key(session: Session, key_id: str) -> ApiKey:
    """Return a key by its id. Raises NotFoundError."""
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFoundError("there is no key with this id; lists of keys show the ids")
    return key


def find_key(session: Session, key: str) -> ApiKey:
    """Return the key with this id, secret, or beginning of a secret as lists show it.

    Raises NotFoundError, or ConflictError where a beginning fits several keys.
    """
    key_hash = hash_secret(key)
    opens = (ApiKey.key_hash == key_hash) | (ApiKey.previous_hash == key_hash)
    matches = (ApiKey.id == key) | opens | (ApiKey.hint == key[:_HINT_CHARACTERS])
    keys = session.scalars(select(ApiKey).where(matches)).all()
    exact = [row for row in keys if row.id == key or key_hash in (row.key_hash, row.previous_hash)]
    if not exact and len(key) == _HINT_CHARACTERS:
        exact = list(keys)
    if not exact:
        raise NotFoundError(f"there is no key {key[:_HINT_CHARACTERS]!r}…; `tokenmill keys list` shows the ids")
    if len(exact) > 1:
        raise ConflictError(f"{key!r} begins {len(exact)} keys; name one by its id: {', '.join(k.id for k in exact)}")
    return exact[0]


def rotate_key(
    session: Session, key: ApiKey, *, overlap: timedelta, lifetime: timedelta | None = None
) -> tuple[ApiKey, str]:
    """Give a key a new secret and return it; the previous one remains valid for `overlap`.

    An older secret stops working at once, and the key's browser sessions end. `lifetime` sets a new expiry. Raises
    ConflictError for a revoked key, or for an expired one without a new `lifetime`.
    """
    if not timedelta() <= overlap <= MAX_OVERLAP:
        raise InputError(f"the overlap is {overlap}; give 0 to {MAX_OVERLAP.days} days", param="overlap")
    session.refresh(key, with_for_update=True)
    if key.revoked_at is not None:
        raise ConflictError(f"key {key.id} was revoked; make another one with `tokenmill keys create`")
    now = session.scalar(select(func.now()))
    assert now is not None
    if lifetime is None and key.expires_at is not None and key.expires_at <= now:
        raise ConflictError(f"key {key.id} expired at {key.expires_at:%Y-%m-%d %H:%M} UTC; give it a new end, too")
    secret = _new_secret()
    key.previous_hash, key.previous_until = (key.key_hash, now + overlap) if overlap else (None, None)
    key.key_hash, key.hint = hash_secret(secret), secret[:_HINT_CHARACTERS]
    if lifetime is not None:
        key.expires_at = now + _checked_lifetime(lifetime)
    session.flush()
    browser_sessions.end_of_key(session, key.id)
    return key, secret


def revoke_key(session: Session, key: ApiKey) -> ApiKey:
    """Revoke a key with all its secrets, and end its sessions. Revoking again keeps the first time."""
    session.execute(
        update(ApiKey).where(ApiKey.id == key.id, ApiKey.revoked_at.is_(None)).values(revoked_at=func.now())
    )
    session.refresh(key)
    browser_sessions.end_of_key(session, key.id)
    return key


def revoke_keys(session: Session, tenant_id: str) -> None:
    """Revoke all keys of a tenant, and end their sessions."""
    of_tenant = update(ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.revoked_at.is_(None))
    session.execute(of_tenant.values(revoked_at=func.now()))
    browser_sessions.end_of_tenant(session, tenant_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKey:
    """The caller behind a hash; otherwise `refusal` has the reason."""

    caller: Caller | None
    refusal: str = ""
    seconds_left: float = math.inf
    """Until the secret expires."""

    def required(self) -> Caller:
        """Return the caller. Raises AuthenticationError; the message never repeats the key."""
        if self.caller is None:
            raise AuthenticationError(self.refusal)
        return self.caller


def authenticate(session: Session, secret: str) -> Caller:
    """Return the caller of a secret. Raises AuthenticationError."""
    if not secret:
        raise AuthenticationError("no API key was given; send `Authorization: Bearer tm-…`", code="missing_api_key")
    return authenticate_hash(session, hash_secret(secret))


def authenticate_hash(session: Session, key_hash: str) -> Caller:
    """Return the caller of the secret with this hash, and record its use. Raises AuthenticationError."""
    return look_up(session, [key_hash])[key_hash].required()


def look_up(session: Session, key_hashes: Sequence[str]) -> dict[str, FoundKey]:
    """Return the caller of each hash, and record the use of the keys.

    Secrets are looked up by their hashes, so the timing of a wrong one reveals nothing about a right one.
    """
    hashes = set(key_hashes)
    callers = dict.fromkeys(key_hashes, _UNKNOWN)
    used: list[str] = []
    for key, tenant, now, is_noted in session.execute(_KEYS_AND_TENANTS, {"key_hashes": list(key_hashes)}):
        for key_hash in hashes & {key.key_hash, key.previous_hash}:
            callers[key_hash] = _found(key, tenant, key_hash, now=now)
            if callers[key_hash].caller is not None and not is_noted:
                used.append(key.id)
    if used:
        session.execute(_NOTE_USE, {"key_ids": used})
    return callers


def _found(key: ApiKey, tenant: Tenant | None, key_hash: str, *, now: datetime) -> FoundKey:
    ends = {"expired": key.expires_at, "was rotated; this secret ended": key.previous_until}
    if key.key_hash == key_hash:
        del ends["was rotated; this secret ended"]
    coming = {what: at for what, at in ends.items() if at is not None}
    ended = {what: at for what, at in coming.items() if at <= now}
    if key.revoked_at is not None:  # whatever the time: of two transactions the later one may have the earlier now()
        ended = {"was revoked": key.revoked_at}
    for what, at in ended.items():
        return FoundKey(caller=None, refusal=f"the API key {what} at {at:%Y-%m-%d %H:%M} UTC; use another one")
    caller = Caller(tenant=tenant, key_id=key.id, key_hash=key_hash, scopes=frozenset(map(Scope, key.scopes)))
    return FoundKey(
        caller=caller, seconds_left=min(((at - now).total_seconds() for at in coming.values()), default=math.inf)
    )


_UNKNOWN = FoundKey(caller=None, refusal="the API key is not known here; `tokenmill keys create` makes one")
_IS_NOTED = func.coalesce(ApiKey.last_used_at >= func.now() - timedelta(minutes=1), False)
_GIVEN = any_(bindparam("key_hashes", type_=ARRAY(Text)))
# Built once: building it took a quarter of the time of a lookup.
_KEYS_AND_TENANTS = (
    select(ApiKey, Tenant, func.statement_timestamp(), _IS_NOTED)
    .outerjoin(Tenant, ApiKey.tenant_id == Tenant.id)
    .where((ApiKey.key_hash == _GIVEN) | (ApiKey.previous_hash == _GIVEN))
)
# Skipped where it would have to wait: of many requests at once one records the use.
_NOTE_USE = text("""
    UPDATE api_key SET last_used_at = now() WHERE id IN (
        SELECT id FROM api_key WHERE id = ANY(:key_ids) FOR NO KEY UPDATE SKIP LOCKED
    )
""")


def hint_of(secret: str) -> str | None:
    """Return the characters of a key that lists show; None for text that is no key, and may be another secret."""
    is_key = secret.startswith(KEY_PREFIX) and len(secret) >= _KEY_CHARACTERS
    return secret[:_HINT_CHARACTERS] if is_key else None


def masked(text: str) -> str:
    """Return a text with keys masked as in lists: somebody may have put one into a path."""
    return _SECRETS.sub(r"\1…", text)
