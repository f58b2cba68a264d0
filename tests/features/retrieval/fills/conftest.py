"""Fixtures of tests of fills."""

from __future__ import annotations

from tests.jobs.fixtures import make_batch, make_file, settings, submit
