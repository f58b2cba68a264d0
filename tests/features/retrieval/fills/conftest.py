"""Fixtures of tests of fills."""

from __future__ import annotations

from tests.features.retrieval.fills.fixtures import finding
from tests.jobs.fixtures import make_batch, make_file, settings, submit
