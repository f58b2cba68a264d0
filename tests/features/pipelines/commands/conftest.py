"""What tests of pipelines' commands may ask for."""

from __future__ import annotations

from tests.cli.fixtures import api_key, database, service
