"""Fixtures of tests of the sender; the worker's environment replaces the queue's."""

from __future__ import annotations

from tests.workers.fixtures import maker, tenant
