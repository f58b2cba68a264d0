"""Fixtures of tests of real servers: a worker without its process, on a real database."""

from __future__ import annotations

from tests.engines.fixtures import connect, settings
from tests.workers.fixtures import maker, storage, submit, submit_valid, tenant
