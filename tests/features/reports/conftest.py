"""Fixtures of tests of reports."""

from __future__ import annotations

from tests.features.pipelines.fixtures import make_schedule, pipeline, settings
from tests.features.reports.fixtures import days
from tests.jobs.fixtures import engine, maker, session, statements, storage, tenant
