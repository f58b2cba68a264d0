"""Fixtures of tests of the queue."""

from __future__ import annotations

from tests.jobs.fixtures import (
    engine,
    make_batch,
    make_chunk,
    make_file,
    maker,
    pg_dump,
    request_line,
    run,
    session,
    settings,
    statements,
    storage,
    submit,
    tenant,
)
