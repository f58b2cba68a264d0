"""Waiting for an API in another process or thread."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from api.server import ServerConfig
from tests.api import shared_routes


def wait_until_alive(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/healthz")
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(log.read_text())


def wait_until(is_so: Callable[[], bool], *, guard_seconds: float = 20) -> None:
    deadline = time.monotonic() + guard_seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


@contextmanager
def running(config: ServerConfig) -> Iterator[str]:
    shared_routes.share()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not server.started:
            assert thread.is_alive(), "the server ended while it was starting"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
