"""Checks that readers of documents never use the network: one that connects or listens fails."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(autouse=True)
def _no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a reader of documents has used a socket")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
