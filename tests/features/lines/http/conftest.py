"""Fixtures of tests of lines' endpoints."""

from __future__ import annotations

from tests.api.fixtures import client, every_answer_is_documented, http, input_lines, new_client, submit
