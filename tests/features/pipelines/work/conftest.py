"""Fixtures of tests of runs; the worker's environment replaces the queue's."""

from __future__ import annotations

from tests.features.pipelines.work.fixtures import house
from tests.workers.fixtures import maker, settings, storage, submit, tenant
