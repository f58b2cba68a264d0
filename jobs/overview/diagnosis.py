"""Database checks of `tokenmill doctor`: version, schema, clock, connections, unserved models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from jobs.access import Standing, standing_of
from jobs.chunks.fleet import live_models
from jobs.database import is_ready, reported_as_service_error, sessions
from jobs.lines.document_bodies import PREPARE_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLook:
    """One check of the database. Values from our tables are empty where it has none."""

    version: str
    """Of Postgres."""
    revision: str | None
    """Of the schema; None: it has none yet."""
    runs_this_code: bool = False
    """Whether this code runs on the schema: its own, or a newer compatible one."""
    clock_seconds: float
    """How far the local clock is ahead of the database's, within the query's duration."""
    num_connections: int
    max_connections: int
    standing: Standing
    """The service's rights there."""
    served_models: Sequence[str] = ()
    """Models that a live worker serves."""
    unserved_models: Sequence[str] = ()
    """Models that open batches wait for and no live worker serves."""
    are_documents_served: bool = False
    """Whether a prepare worker lives; documents are no model, and in neither list."""
    do_documents_wait: bool = False
    """Whether open batches wait for one, and none lives."""


def look(engine: Engine) -> DatabaseLook:
    """Query the database. Raises ServiceError where it does not answer."""
    with reported_as_service_error(engine.url), sessions(engine)() as session:
        before = time.time()
        server = session.execute(_SERVER).one()
        here = (before + time.time()) / 2
        standing, revision = standing_of(session), _revision(engine)
        served = set(live_models(session) if revision is not None else ())
        wanted_models = set(session.scalars(_WANTED_MODELS) if revision is not None else ())
    return DatabaseLook(
        version=server.version,
        revision=revision,
        runs_this_code=is_ready(engine),
        clock_seconds=here - float(server.now),
        num_connections=server.num_connections,
        max_connections=server.max_connections,
        standing=standing,
        served_models=sorted(served - {PREPARE_MODEL}),
        unserved_models=sorted(wanted_models - served - {PREPARE_MODEL}),
        are_documents_served=PREPARE_MODEL in served,
        do_documents_wait=PREPARE_MODEL in wanted_models - served,
    )


def _revision(engine: Engine) -> str | None:
    try:
        with engine.connect() as connection:
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except ProgrammingError:
        return None


_SERVER = text("""
    SELECT current_setting('server_version') AS version, extract(epoch FROM clock_timestamp()) AS now,
        (SELECT sum(numbackends) FROM pg_stat_database)::integer AS num_connections,
        current_setting('max_connections')::integer AS max_connections
""")

_WANTED_MODELS = text("SELECT DISTINCT model FROM batch WHERE state = 'in_progress' AND model IS NOT NULL")
