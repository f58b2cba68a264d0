"""The admin log: who changed what, when, from what to what. Append-only, enforced by triggers on the table.

An entry is written in the transaction that makes the change, and kept as long as the database: one row per change,
without secrets and without tenants' text except names.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs import deletions
from jobs.tables import AdminEntry

Shown = Mapping[str, Any]
"""Logged values of a thing: JSON values, datetimes and decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who made a change."""

    kind: str
    name: str

    @classmethod
    def of_key(cls, key_id: str) -> Actor:
        return cls(kind="key", name=key_id)

    @classmethod
    def of_process(cls) -> Actor:
        """Return the operating system's user of this process, whatever its environment says."""
        user_id = os.getuid()
        try:
            return cls(kind="user", name=pwd.getpwuid(user_id).pw_name)
        except KeyError:  # a container's user without a passwd entry
            return cls(kind="user", name=str(user_id))

    @property
    def as_deleter(self) -> str:
        """Return the name under which `jobs.deletions` records this actor."""
        return self.name if self.kind == "key" else deletions.OPERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """An operator's transaction and identity."""

    session: Session
    actor: Actor

    def note(
        self,
        action: str,
        subject: str,
        *,
        tenant_id: str | None,
        before: Shown | None = None,
        after: Shown | None = None,
    ) -> None:
        """Write an entry; `before` None: created, `after` None: deleted."""
        entry = AdminEntry(
            actor=f"{self.actor.kind}:{self.actor.name}",
            action=action,
            subject=subject,
            tenant_id=tenant_id,
            before=None if before is None else _as_json(before),
            after=None if after is None else _as_json(after),
        )
        self.session.add(entry)
        self.session.flush()

    @contextmanager
    def noting(self, action: str, subject: str, *, tenant_id: str | None, look: Callable[[], Shown]) -> Iterator[None]:
        """Log how a block changes the values of `look`; nothing where they are unchanged."""
        before = look()
        yield
        after = look()
        changed = [name for name in after if before[name] != after[name]]
        if changed:
            old, new = ({name: shown[name] for name in changed} for shown in (before, after))
            self.note(action, subject, tenant_id=tenant_id, before=old, after=new)


Administration = Callable[[], AbstractContextManager[Admin]]
"""Opens an operator's transaction, committed at its end: for work that needs several."""


def _as_json(values: Shown) -> dict[str, Any]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def entries(session: Session, *, before_id: int | None = None, limit: int) -> Sequence[AdminEntry]:
    """Return up to `limit` entries, newest first; with `before_id` only older ones."""
    query = select(AdminEntry).order_by(AdminEntry.id.desc()).limit(limit)
    return session.scalars(query if before_id is None else query.where(AdminEntry.id < before_id)).all()
