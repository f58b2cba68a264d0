"""Fixtures of tests of documents."""

from __future__ import annotations

from tests.features.documents.fixtures import answering, extractions, make_collection, make_extraction, run, settings
from tests.jobs.fixtures import engine, maker, session, storage, tenant
