"""What tests of documents' endpoints may ask for."""

from __future__ import annotations

from tests.api.fixtures import every_answer_is_documented, http
