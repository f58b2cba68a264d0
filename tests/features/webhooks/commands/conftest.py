"""What tests of webhooks' commands may ask for."""

from __future__ import annotations

from tests.cli.fixtures import api_key, database
