"""Fixtures of tests of commands that submit work."""

from __future__ import annotations

from tests.cli.fixtures import api_key, base_url, batch_file, database, server, service
