"""Fixtures of tests of retrieval's commands."""

from __future__ import annotations

from tests.cli.fixtures import api_key, database, service
