"""Fixtures of tests of documents' commands."""

from __future__ import annotations

from tests.cli.fixtures import api_key, database, service
