"""Fixtures of tests of flows: those of the queue."""

from __future__ import annotations

from tests.jobs.fixtures import engine, maker, session, settings, storage, tenant
