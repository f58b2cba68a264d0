"""Tests of the proxy that can be cut or blocked."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.chaos.proxy import Proxy

WAIT_SECONDS = 20


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy to an echo server."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder, "s")
        server.bind(str(path))
        server.listen()

        def echo(connection: socket.socket) -> None:
            with connection:
                while content := connection.recv(100):
                    connection.sendall(content)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        proxy = Proxy(path)
        yield proxy
        proxy.close()
        server.shutdown(socket.SHUT_RDWR)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_SECONDS)


def test_what_goes_in_comes_back_until_it_is_cut(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        assert proxy.cut() == 1
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    with connect(proxy) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"


def test_while_it_is_blocked_nothing_comes_through(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"1")
        assert client.recv(100) == b"1"
        proxy.block()
        client.sendall(b"2")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
        client.settimeout(WAIT_SECONDS)
        proxy.unblock()
        assert client.recv(100) == b"2"


def test_a_server_that_is_down_breaks_the_connection(tmp_path: Path) -> None:
    proxy = Proxy(tmp_path / "nobody")
    with connect(proxy) as client, suppress(ConnectionResetError):
        assert client.recv(100) == b""
    proxy.close()
