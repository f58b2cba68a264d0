"""Fixtures of tests of commands."""

from __future__ import annotations

from tests.cli.fixtures import api_key, base_url, batch_file, database, extracting, server, service
