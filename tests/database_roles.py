"""URLs of a test's database for logins other than that of services."""

from __future__ import annotations

import psycopg
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

from cli.embedded.postgres import SUPERUSER
from jobs.access import OWNER, PREPARE, SCALER, SERVICE


def as_superuser(url: str) -> str:
    return _as(SUPERUSER, url)


def as_owner(url: str) -> str:
    return _as(OWNER, url)


def as_service(url: str) -> str:
    return _as(SERVICE, url)


def as_prepare(url: str) -> str:
    return _as(PREPARE, url)


def as_scaler(url: str) -> str:
    return _as(SCALER, url)


def _as(user: str, url: str) -> str:
    return make_url(url).set(username=user).render_as_string(hide_password=False)


def as_superuser_do(session: Session, *statements: str) -> None:
    """Commit the session's changes, and run statements that services may not run."""
    session.commit()
    bind = session.get_bind()
    assert isinstance(bind, Engine)
    url = as_superuser(bind.url.set(drivername="postgresql").render_as_string(hide_password=False))
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
