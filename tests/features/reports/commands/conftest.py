"""Fixtures of tests of reports' commands."""

from __future__ import annotations

from tests.cli.fixtures import api_key, database, service
