"""Fixtures of tests of pipelines' endpoints."""

from __future__ import annotations

from tests.api.fixtures import every_answer_is_documented, http, new_client
