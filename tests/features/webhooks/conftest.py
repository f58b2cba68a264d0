"""Fixtures of tests of webhooks."""

from __future__ import annotations

from tests.jobs.fixtures import (
    engine,
    make_batch,
    make_file,
    maker,
    run,
    session,
    settings,
    storage,
    submit,
    tenant,
)
