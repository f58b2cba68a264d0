"""Fixtures of tests of webhooks' endpoints."""

from __future__ import annotations

from tests.api.fixtures import client, every_answer_is_documented, http, new_client
