"""Tests of `tokenmill db upgrade --wait`, which containers start before Postgres accepts connections."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from cli.database import commands
from cli.embedded.sockets import free_port
from jobs.errors import ServiceError


def test_an_upgrade_waits_for_postgres_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_DATABASE_OWNER_URL", f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    began = time.monotonic()
    upgraded = CliRunner().invoke(commands.app, ["upgrade", "--wait", "1"])
    assert isinstance(upgraded.exception, ServiceError)
    assert time.monotonic() - began >= 1
