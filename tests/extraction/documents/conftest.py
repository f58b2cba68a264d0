"""Readers open no sockets: here one that does fails."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a reader of documents has opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
