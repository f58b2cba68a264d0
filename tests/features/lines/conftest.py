"""Fixtures of tests of the lines explorer."""

from __future__ import annotations

from tests.jobs.fixtures import (
    engine,
    make_batch,
    make_chunk,
    make_file,
    maker,
    request_line,
    run,
    session,
    settings,
    statements,
    storage,
    submit,
    tenant,
)
