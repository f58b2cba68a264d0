"""Waits for an API that runs in a process of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx


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
