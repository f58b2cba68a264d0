"""Fixtures of tests of administration."""

from __future__ import annotations

from tests.jobs.fixtures import engine, make_batch, make_file, maker, session, tenant
