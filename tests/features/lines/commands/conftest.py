"""Fixtures of tests of the command for lines."""

from __future__ import annotations

from tests.cli.fixtures import api_key, batch_file, database, server, service
