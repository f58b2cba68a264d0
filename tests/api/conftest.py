"""Fixtures of all tests of the API."""

from __future__ import annotations

from tests.api.fixtures import client, every_answer_is_documented, http, input_lines, new_client, stored_objects, submit
