"""Fixtures of tests of reports' endpoints."""

from __future__ import annotations

from tests.api.dashboard.fixtures import browse
from tests.api.fixtures import every_answer_is_documented
