"""Fixtures of tests of reports' pages."""

from __future__ import annotations

from tests.api.dashboard.fixtures import browse, deployment
from tests.api.fixtures import every_answer_is_documented
