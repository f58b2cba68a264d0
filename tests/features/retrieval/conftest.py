"""Fixtures of tests of retrieval."""

from __future__ import annotations

from tests.features.documents.fixtures import make_collection
from tests.features.retrieval.fixtures import answering, indexes, make_builds, make_index, model, run, settings
from tests.jobs.fixtures import engine, maker, session, storage, tenant
