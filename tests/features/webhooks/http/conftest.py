"""What tests of webhooks' endpoints may ask for."""

from __future__ import annotations

from tests.api.fixtures import client, every_answer_is_documented, http, new_client
