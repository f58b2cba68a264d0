"""Fixtures of tests of lines' pages."""

from __future__ import annotations

from tests.api.dashboard.fixtures import browse, deployment, operator_key
from tests.api.fixtures import every_answer_is_documented, input_lines
